"""The parts of the benchmark `hedge` that its figures rest on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.hedge.run import Found, Throttle, at


def state(pid: int) -> str:
    """The process's state as Linux has it: `T` is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_throttled_process_is_stopped_and_continued_and_left_running() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)"])
    try:
        throttle = Throttle(child.pid)
        throttle.start()
        seen: list[str] = []
        end = time.monotonic() + 300
        while time.monotonic() < end and ("T" not in seen or seen[-1] == "T"):
            seen.append(state(child.pid))
            time.sleep(0.005)
        throttle.end()
        assert "T" in seen and seen[-1] != "T"
        assert state(child.pid) != "T"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.01, 1)])
def test_percentiles_are_values_that_were_measured(share: float, value: int) -> None:
    assert at(range(100, 0, -1), share) == value
    assert Found([list(map(float, range(1, 51))), list(map(float, range(51, 101)))]).whole(share) == value
