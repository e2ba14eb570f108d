"""What do attacks on the sandbox come to, and how many programs run in a second?

Programs a second in a sandbox, by backend.

    python -m experiments sandbox --rounds 3 [--against FOLDER]

A program is a line of Python. Four run at a time, warm sandboxes are kept, and the backends take turns. With a folder
of another version's tree, that one takes its turns as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from plait.core.messages import pluralise
from plait.workers.tools.sandbox import Program, ProgramOutcome, Sandbox
from scripts.checkout import python_path

AT_ONCE = 4
HERE = Path(__file__).parents[2]
ABOUT = """# The sandbox: programs a second, and attacks

`python -m experiments sandbox --rounds {number}`

`print(sum(range(n)))`, {programs} times, four at a time, in warm sandboxes; {rounds} in turn, median (lowest–highest).
CPU is that of the sandbox and of what it waits for; a program behind `bwrap` is not in it. Threads that ran or waited
for a core: {load:.0f} in the median.

| backend | version | programs a second | CPU a program, ms |
|---|---|---|---|"""


async def rate(backend: str, count: int) -> tuple[float, float]:
    """Return the programs a second, and the seconds of CPU of one."""
    sandbox = Sandbox(backend, at_once=AT_ONCE, warm=AT_ONCE)

    async def some(number: int) -> list[ProgramOutcome]:
        return await asyncio.gather(*(sandbox.run(Program(code=f"print(sum(range({i})))")) for i in range(number)))

    try:
        await some(AT_ONCE)
        begun, used = time.monotonic(), _cpu()
        outcomes = await some(count)
        took = time.monotonic() - begun
    finally:
        await sandbox.close()
    failed = [each for each in outcomes if each.status != "done"]
    if failed:
        raise SystemExit(f"{len(failed)} of {count} programs failed, the first: {failed[0]}")
    return count / took, (_cpu() - used) / count


def _cpu() -> float:
    """Return the seconds of CPU of this process and of those that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def measured(tree: Path, backend: str, count: int) -> dict[str, float]:
    """Return the result of a tree, run in its own process."""
    command = [sys.executable, "-m", "experiments.sandbox.run", "--child", backend, "--programs", str(count)]
    environment = {**os.environ, "PYTHONPATH": python_path(tree, HERE)}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=HERE).stdout
    return dict(zip(("rate", "cpu"), json.loads(said), strict=True))


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    from .._tools.measure import spread

    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    by: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by.setdefault((row["backend"], row["tree"]), []).append(row)
    number, load = max(map(len, by.values())), median(row["load"] for row in rows)
    about = {"number": number, "rounds": pluralise(number, "round"), "load": load, "programs": rows[0]["programs"]}
    lines_ = ABOUT.format(**about).splitlines()
    for (backend, tree), some in by.items():
        rates, cpu = spread([row["rate"] for row in some]), spread([1e3 * row["cpu"] for row in some])
        lines_.append(f"| `{backend}` | {tree} | {rates} | {cpu} |")
    return "\n".join([*lines_, ""])


def main() -> None:
    """Measure, write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--backends", nargs="+", default=["process", "bubblewrap"])
    parser.add_argument("--against", type=Path, help="the folder of another tree")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    if "--child" in sys.argv:  # of another tree, which may lack what the page needs
        options = parser.parse_args()
        print(json.dumps(asyncio.run(rate(options.child, options.programs))))
        return
    from .._tools.command import given_of, page_options
    from .._tools.kept import add_row

    page_options(parser, "sandbox")
    options = parser.parse_args()
    given = given_of(options, "sandbox")
    kept = given.records / "sandbox.jsonl"
    if not given.report:
        kept.unlink(missing_ok=True)
        trees = {"this": HERE} if options.against is None else {"other": options.against.resolve(), "this": HERE}
        for number in range(options.rounds):
            for backend in options.backends:
                for name, tree in trees.items():
                    said = measured(tree, backend, options.programs)
                    add_row(kept, {"backend": backend, "tree": name, "round": number, "programs": options.programs,
                                   **said, "load": os.getloadavg()[0]})  # fmt: skip
    found = given.rows(kept)
    print(given.write(page_of(found.lines), found))


if __name__ == "__main__":
    main()
