"""`python -m tests.oracles FOLDER [NAME …] [--seed N] [--number N] [--write]`: run the authors' functions beside ours.

FOLDER holds clones, named OWNER+NAME or NAME. Prints method, cases and differences; with `--write` the facts are
written anew. Ends with 1 if something differs more than is documented.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.oracles.harness import Oracle, oracles


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def count(oracle: Oracle, clone: Path, seed: int, number: int) -> tuple[int, int]:
    """Return how many new cases were run, and in how many ours differs."""
    rows = [oracle.same(theirs, ours) for _, theirs, ours in oracle.run(clone, seed, number)]
    return len(rows), rows.count(False)


def main(words: list[str]) -> int:
    """Run the oracles whose clones are there."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(words)
    bad = 0
    for name, oracle in oracles().items():
        if asked.names and name not in asked.names:
            continue
        clone = oracle.clone(asked.folder)
        if clone is None:
            say(f"{name:24} no clone of {oracle.repository}")
            continue
        try:
            cases, differ = oracle.write(clone) if asked.write else count(oracle, clone, asked.seed, asked.number)
        except ModuleNotFoundError as error:
            say(f"{name:24} needs the package {error.name}")
            continue
        bad += differ > 0 and not oracle.differs
        say(f"{name:24} {cases:6,} cases {differ:5,} differ  {oracle.differs if differ else ''}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
