"""`make evidence`: remakes the quick pages of `experiments` and compares each figure with the page that is committed.

A figure with an interval, `61.8 % (58.7–64.8)`, may fall anywhere inside the committed one's interval; any other has to
be the same. What is remade is deterministic (virtual time, fixed seeds) or made of rows that are kept, so a difference
is a change of the code. Pages that need an engine, other people's software or hours are listed as not remade.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from plait.core.messages import pluralise

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
QUICK: dict[str, tuple[str, ...]] = {
    "adapter": ("--report",),
    "arithmetic_sampling": ("--problems", "20", "--seed", "7"),
    "bash_sql": ("--problems", "60", "--report"),
    "calibration": ("--fit", "votes of 2", "--report"),
    "code_search": ("--problems", "200", "--seed", "1"),
    "deadlines": ("--report",),
    "effort_limit": ("--problems", "8000", "--seed", "2"),
    "erring_votes": ("--problems", "120", "--seed", "7", "--worker", "engine", "--report"),
    "function_calls": ("--report",),
    "learned_numbers": ("--report",),
    "learned_prompts": ("--report",),
    "masked_shapes": ("--problems", "40"),
    "public_traces": (),
    "repeated_sampling": ("--report",),
    "rollout_routers": ("--report",),
    "router": ("--rounds", "3", "--runs", "4", "--report"),
    "runtimes": ("--report",),
    "scale": ("--problems", "150"),
    "takeover": ("--problems", "160"),
    "tools_at_scale": ("--problems", "300", "--seed", "7"),
    "unequal_engines": ("--rounds", "3", "--load", "0.8", "--report"),
    "votes_live": ("--problems", "15", "--seed", "11", "--report"),
}
"""Options of each. `--report` works the page out of the rows beside it; without it the experiment runs again."""
AT_ONCE = 2
SHOWN = 9
_NUMBER = r"([-+−]?\d[\d,]*(?:\.\d+)?)"
_FIGURE = re.compile(rf"(?<![\w.]){_NUMBER}[^()|]{{0,9}}\({_NUMBER}(?:–| to ){_NUMBER}\)")


class Difference(NamedTuple):
    """A cell that is not what is committed."""

    row: str
    committed: str
    remade: str


def differences(committed: str, remade: str) -> Iterator[Difference]:
    """Yield what of a remade page is not as the committed page has it. The committed page may say more.

    Tables are compared in order, row by row; a row is known by its place.
    """
    known = list(_tables(committed))
    for place, table in enumerate(_tables(remade)):
        if place >= len(known):
            yield Difference(" | ".join(table[0]), "no such table", "a table")
            continue
        for row, other in zip(known[place], table, strict=False):
            for cell, new in zip(row, other, strict=False):
                if not _same(cell, new):
                    yield Difference(row[0], cell, new)
        if len(table) > len(known[place]):
            yield Difference(" | ".join(table[0]), f"{len(known[place])} rows", f"{len(table)} rows")


def _tables(page: str) -> Iterator[list[list[str]]]:
    table: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
        elif table:
            yield table
            table = []


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _same(committed: str, remade: str) -> bool:
    if committed == remade:
        return True
    old, new = _FIGURE.findall(committed), _FIGURE.findall(remade)
    if not old or len(old) != len(new) or _FIGURE.sub("", committed) != _FIGURE.sub("", remade):
        return False
    return all(_number(low) <= _number(value) <= _number(high)
               for (_, low, high), (value, _, _) in zip(old, new, strict=True))  # fmt: skip


def remade(name: str) -> bool:
    """Remake a page, say what differs from the committed one, and return whether anything does."""
    out, began = ROOT / "build" / "evidence" / name, time.monotonic()
    shutil.rmtree(out, ignore_errors=True)  # rows of an earlier call would be taken for this one's
    out.mkdir(parents=True)
    command = [sys.executable, "-m", "experiments", name, *QUICK[name], "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took = f"({time.monotonic() - began:.0f} s)"
    if done.returncode:
        print(f"{name}: failed {took}: {done.stderr.strip()[-300:]}", flush=True)
        return True
    committed = (EXPERIMENTS / name / "README.md").read_text(encoding="utf-8")
    changed = list(differences(committed, (out / "README.md").read_text(encoding="utf-8")))
    lines = [f"{name}: {pluralise(len(changed), 'difference') if changed else 'as committed'} {took}"]
    lines += [f"  {row}: committed {old}, remade {new}" for row, old, new in changed[:SHOWN]]
    print("\n".join(lines), flush=True)
    return bool(changed)


def main(arguments: Sequence[str]) -> int:
    """Remake the pages; return 1 if any differs."""
    parser = argparse.ArgumentParser(prog="make evidence", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of {', '.join(QUICK)}")
    names = parser.parse_args(arguments).names or list(QUICK)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        red = sum(pool.map(remade, names))
    left = sorted(path.parent.name for path in ROOT.glob("experiments/*/README.md") if path.parent.name not in QUICK)
    print(f"not remade here (an engine, other software, or hours): {', '.join(left)}")
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
