"""The clock of a shared machine: seconds of a core at its full speed that others did not have."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["EVERY", "LOOP", "SMOOTH", "CoreTime", "Yardstick"]

LOOP, EVERY, SMOOTH = 2_000, 0.02, 12
"""Turns of the loop that is timed; seconds between two of them; how many before and after are averaged for what others
had of the core."""


class Yardstick:
    """Times a short loop again and again, in CPU seconds of its thread: how fast the core was at each time. And what
    other processes had of the core until then. For a process that stays on one core."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float, float]] = []
        """Times on the monotonic clock, which is the journal's; seconds of the loop; seconds that others had."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Yardstick:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _measure(self) -> None:
        core = f"cpu{min(os.sched_getaffinity(0))} "
        while not self._stop.wait(EVERY):
            began, total = time.thread_time(), 0
            for i in range(LOOP):
                total += i * i
            took = time.thread_time() - began
            line = next(each for each in Path("/proc/stat").read_text().splitlines() if each.startswith(core))
            user, nice, system, _idle, _waiting, *rest = map(int, line.split()[1:9])
            busy = (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
            self.seen.append((time.monotonic(), took, busy - time.process_time()))


class CoreTime:
    """Seconds of a core at its full speed that the process could have had, by the monotonic clock."""

    def __init__(self, seen: Sequence[Sequence[float]], full: float) -> None:
        times, loops, *rest = np.array(seen).T
        smooth = np.array([np.median(loops[max(0, i - 2) : i + 3]) for i in range(len(loops))])
        self.speeds = np.minimum(1.0, full / smooth)
        gone = np.diff(times)
        if rest:  # the kernel counts in hundredths of a second
            others = np.convolve(
                np.pad(rest[0], SMOOTH, mode="edge"), np.ones(2 * SMOOTH + 1) / (2 * SMOOTH + 1), "valid"
            )
            gone = np.clip(gone - np.diff(others), 0.05 * gone, gone)
        self._times = times
        gone = gone * (self.speeds[1:] + self.speeds[:-1]) / 2
        self._core = times[0] + np.concatenate([[0.0], np.cumsum(gone)])

    def __call__(self, at: float) -> float:
        return float(np.interp(at, self._times, self._core))
