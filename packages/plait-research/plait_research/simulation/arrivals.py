"""Arrival times of a workload's runs, from a rate or a recorded trace. Times are in seconds; the first is 0."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from plait.core.errors import ConfigError

_COLUMNS = ("arrival", "arrived_at", "at", "timestamp")
"""Names of a trace's time column; case is ignored."""
_MOST_BYTES = 1 << 30


def at_rate(runs: int, rate: float | None, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Return the arrival times of `runs` runs at an average of `rate` a second, or all 0 without a rate.

    The intervals are gamma-distributed with shape `burstiness`: 1 is a Poisson process, smaller values are burstier,
    larger values are more even (the parameters of vLLM's serving benchmark). Raises `ConfigError` for invalid numbers.
    """
    if runs < 1:
        raise ConfigError(f"a workload needs at least one run, not {runs}")
    if rate is None:
        return [0.0] * runs
    if not (0.0 < rate < math.inf and 0.0 < burstiness < math.inf):
        raise ConfigError(f"the rate ({rate:g}) and the burstiness ({burstiness:g}) must be above 0")
    rng, at, times = Random(f"{seed}/arrivals"), 0.0, [0.0]
    for _ in range(runs - 1):
        at += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
        times.append(at)
    return times


def read_arrivals(path: Path, runs: int | None = None) -> list[float]:
    """Return the sorted arrival times in a file, relative to the first; only the first `runs` times, if given.

    Each line is a number of seconds, or a JSON object with `at` (seconds) or `timestamp` (milliseconds, as in the
    Mooncake traces); or the file is CSV with a column `at` or `TIMESTAMP`, of seconds or of dates (as in the Azure
    LLM inference traces). Raises `ConfigError` with the first line in another format.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} has more than a gigabyte: give a part of it")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"{path} cannot be read ({what}): give a file with arrival times") from None
    header = next((line for line in lines if line.strip()), "")
    column = _column(header)
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (column is not None and line is header):
            continue
        try:
            times.append(_time(line, column))
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise ConfigError(
                f"{path}, line {number}: {line.strip()[:60]!r} is no arrival time; write a number of seconds a line, "
                'JSON lines with "at" or "timestamp", or CSV with a column "at"'
            ) from None
    if not times:
        raise ConfigError(f"{path} holds no arrival times")
    times.sort()
    return [at - times[0] for at in times[:runs]]


def _column(header: str) -> int | None:
    names: Sequence[str] = [name.strip().lower() for name in next(csv.reader([header]), list[str]())]
    return next((i for i, name in enumerate(names) if name in _COLUMNS), None)


def _time(line: str, column: int | None) -> float:
    if column is not None:
        cell = next(csv.reader([line]))[column].strip()
        try:
            at = float(cell)
        except ValueError:
            at = datetime.fromisoformat(cell).timestamp()
    elif line.lstrip().startswith("{"):
        row = json.loads(line)
        at = float(row["at"]) if "at" in row else float(row["timestamp"]) / 1000.0
    else:
        at = float(line)
    if not math.isfinite(at):
        raise ValueError("not finite")
    return at
