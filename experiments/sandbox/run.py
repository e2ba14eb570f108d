"""What do attacks on the sandbox come to, and how many programs run in a second?

Programs a second in a sandbox, by backend.

    python -m experiments sandbox --rounds 3 [--against FOLDER]

A program is a line of Python. Four run at a time, warm sandboxes are kept, and the backends take turns. With a folder
of another version's tree, that one takes its turns as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from plait.workers.tools.sandbox import Program, ProgramOutcome, Sandbox

AT_ONCE = 4


async def rate(backend: str, count: int) -> float:
    """Return the programs a second."""
    sandbox = Sandbox(backend, at_once=AT_ONCE, warm=AT_ONCE)

    async def some(number: int) -> list[ProgramOutcome]:
        return await asyncio.gather(*(sandbox.run(Program(code=f"print(sum(range({i})))")) for i in range(number)))

    try:
        await some(AT_ONCE)
        begun = time.monotonic()
        outcomes = await some(count)
        took = time.monotonic() - begun
    finally:
        await sandbox.close()
    failed = [each for each in outcomes if each.status != "done"]
    if failed:
        raise SystemExit(f"{len(failed)} of {count} programs failed, the first: {failed[0]}")
    return count / took


def measured(tree: Path, backend: str, count: int) -> float:
    """Return the programs a second of a tree, in a process of its own."""
    command = [sys.executable, __file__, "--child", backend, "--programs", str(count)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--backends", nargs="+", default=["process", "bubblewrap"])
    parser.add_argument("--against", type=Path, help="the folder of another tree")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(asyncio.run(rate(given.child, given.programs)))
        return
    here = Path(__file__).parents[2]
    trees = [here] if given.against is None else [given.against.resolve(), here]
    found: dict[tuple[str, Path], list[float]] = {}
    for _ in range(given.rounds):
        for backend in given.backends:
            for tree in trees:
                found.setdefault((backend, tree), []).append(measured(tree, backend, given.programs))
    print("| backend | tree | programs a second |\n|---|---|---|")
    for (backend, tree), rates in found.items():
        which = "this" if tree == here else "the other"
        print(f"| {backend} | {which} | {median(rates):.1f} ({min(rates):.1f}–{max(rates):.1f}) |")
    print(f"\nLoad {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")
