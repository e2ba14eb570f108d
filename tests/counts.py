"""Long counts: tens of thousands of hostile cases in slices. A slice that is done is written down, so that a count that
was stopped goes on where it was.

    python -m tests.counts                          what has been counted, and what is left
    python -m tests.counts NAME... [--minutes 20]   go on with these, by turns

A row of `build/counts/NAME.jsonl` is a slice: its cases, what came of them, the commit, and the processor's seconds.
One with `wrong` has a finding; it does not count, and is tried again by the next call. Exits with 1 if there was one.
The soak is a count, too, but of one server from its first request to its last: `python scripts/soak.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tests.conftest  # noqa: F401  (state and sockets of its own, before anything of plait's is imported)

from .apps.serve import hostile_bodies, test_mutants, test_no_client_stalls, test_rights
from .faults import test_hosts, world
from .faults.ray_world import RayWorld, ray_faults, why_no_ray
from .trust import test_damaged_journals, test_damaged_rows
from .world import test_world

KEPT = Path(__file__).resolve().parents[1] / "build" / "counts"


@dataclass(frozen=True)
class Count:
    """Cases by number, tried so many at a time."""

    whole: int
    slice: int
    run: Callable[[range, Path], dict[str, Any]]
    """Tries cases in an empty folder; returns what is told of them, and raises where there is a finding."""


def _rights(numbers: range, folder: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        refused, fine, passed = test_rights.tried(len(numbers), 2 + numbers.start, patch)
    assert not passed, passed[:3]
    return {"refused": refused, "harmless": fine}


def _doors(numbers: range, folder: Path) -> dict[str, Any]:
    return _innocents(*asyncio.run(test_mutants.served(folder, numbers)))


def _mcp(numbers: range, folder: Path) -> dict[str, Any]:
    return _innocents(*asyncio.run(test_mutants.asked_over_mcp(folder, numbers)))


def _innocents(kinds: dict[str, int], loop: list[float]) -> dict[str, Any]:
    late = test_mutants.part(loop, 0.99)
    assert late <= test_mutants.BOUND, f"an innocent had {late:.3f} s of the loop in the 99th percentile"
    return {"kinds": kinds, "innocents": len(loop), "p99": round(late, 4), "longest": round(max(loop), 4)}


def _journals(numbers: range, folder: Path) -> dict[str, Any]:
    sound = test_damaged_journals.written(folder / "sound.plait")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "damaged").mkdir()
        patch.chdir(folder / "damaged")
        patch.setenv("COLUMNS", "200")
        test_damaged_journals.go(numbers, sound, folder / "damaged")
    return {}


def _rows(kind: str) -> Callable[[range, Path], dict[str, Any]]:
    return lambda numbers, folder: test_damaged_rows.go(kind, tuple(numbers), folder)


def _signals(numbers: range, folder: Path) -> dict[str, Any]:
    names = list(hostile_bodies.BODIES)[numbers.start : numbers.stop]
    for name in names:
        (folder / "one").mkdir()
        status = asyncio.run(test_no_client_stalls.stopped(folder / "one", hostile_bodies.BODIES[name]))
        assert status == "cancelled", (name, status)
        (folder / "one").rename(folder / str(len(list(folder.iterdir()))))
    return {"bodies": names}


def _faults(numbers: range, folder: Path) -> dict[str, Any]:
    if reason := test_hosts.why_not():
        raise RuntimeError(reason)
    return test_hosts.tried(world.World, world.faults, len(numbers), 29 + numbers.start)


def _ray_faults(numbers: range, folder: Path) -> dict[str, Any]:
    if reason := test_hosts.why_not() or why_no_ray():
        raise RuntimeError(reason)
    return test_hosts.tried(RayWorld, ray_faults, len(numbers), 29 + numbers.start)


def _world(numbers: range, folder: Path) -> dict[str, Any]:
    if reason := test_hosts.why_not():
        raise RuntimeError(reason)
    return test_world.tried(len(numbers), 44 + numbers.start)


COUNTS = {
    "rights": Count(100_000, 1_000, _rights),
    "doors": Count(100_000, 2_000, _doors),
    "mcp": Count(10_000, 500, _mcp),
    "journals": Count(10_000, 100, _journals),
    "jsonl": Count(10_000, 2_000, _rows("jsonl")),
    "csv": Count(10_000, 2_000, _rows("csv")),
    "parquet": Count(10_000, 2_000, _rows("parquet")),
    "signals": Count(len(hostile_bodies.BODIES), 5, _signals),
    "faults": Count(200, 40, _faults),
    "ray-faults": Count(36, 12, _ray_faults),
    "world": Count(500, 50, _world),
}


def slices(count: Count) -> list[range]:
    """A count's slices."""
    return [range(first, min(first + count.slice, count.whole)) for first in range(0, count.whole, count.slice)]


def read(kept: Path) -> list[dict[str, Any]]:
    """The rows of a file that may not be there yet."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


def left(count: Count, kept: Path) -> list[range]:
    """The slices that have not been tried, or in which there was a finding."""
    done = {row["first"] for row in read(kept) if "wrong" not in row}
    return [numbers for numbers in slices(count) if numbers.start not in done]


def one(count: Count, numbers: range, kept: Path, commit: str = "") -> dict[str, Any]:
    """Try a slice, write its row down and return it."""
    before = _processor()
    with tempfile.TemporaryDirectory(prefix="plait-count-", ignore_cleanup_errors=True) as folder:
        try:
            told = count.run(numbers, Path(folder))
        except Exception as error:
            told = {"wrong": "".join(traceback.format_exception(error))[-6_000:]}
    row = {"first": numbers.start, "cases": len(numbers), **told, "commit": commit,
           "cpu": round(_processor() - before, 1)}  # fmt: skip
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
    return row


def _processor() -> float:
    """Seconds of the processor that this process and those it has ended have taken."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


def state(name: str, folder: Path) -> str:
    """How far a count is."""
    rows = [row for row in read(folder / f"{name}.jsonl") if "wrong" not in row]
    late = max((row["p99"] for row in rows if "p99" in row), default=None)
    more = "" if late is None else f", 99th percentile of a slice at most {late:.3f} s of the loop"
    done, seconds = sum(row["cases"] for row in rows), sum(row["cpu"] for row in rows)
    return f"{name:9} {done:7,} of {COUNTS[name].whole:,}, {seconds:,.0f} s of the processor{more}"


def go_on(names: list[str], minutes: float, folder: Path) -> int:
    """Go on with some counts by turns until the time is over; return how many slices had findings."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=KEPT.parents[1], capture_output=True,
                            text=True, check=False).stdout.strip()  # fmt: skip
    until, findings = time.monotonic() + 60 * minutes, 0
    todo = {name: iter(left(COUNTS[name], folder / f"{name}.jsonl")) for name in names}
    while todo:
        for name in list(todo):
            if (numbers := next(todo[name], None)) is None or time.monotonic() > until:
                del todo[name]
                continue
            row = one(COUNTS[name], numbers, folder / f"{name}.jsonl", commit)
            findings += "wrong" in row
            sys.stderr.write(f"{name} {numbers.start}: {row.get('wrong') or row}\n")
    return findings


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.counts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COUNTS))
    parser.add_argument("--minutes", type=float, default=60 * 24, help="begin no slice after so many")
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FOLDER", help="of the rows (build/counts)")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in COUNTS]:
        parser.error(f"there is no count {unknown[0]!r}: {', '.join(COUNTS)}")
    findings = go_on(given.names, given.minutes, given.kept)
    sys.stdout.write("".join(f"{state(name, given.kept)}\n" for name in given.names or COUNTS))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
