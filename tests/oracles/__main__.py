"""`python -m tests.oracles FOLDER [NAME …] [--seed N] [--number N] [--write]`: run the authors' functions beside ours.

FOLDER holds clones, named OWNER+NAME or NAME; `--clone` makes those that are missing. Each oracle runs the files of its
own commit. What one oracle lacks stops no other. Prints method, cases and differences; with `--write` the facts are
written again. Ends with 1 if something differs more than is documented, or could not run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.oracles.harness import Oracle, oracles

TREES = Path(__file__).parents[2] / "build" / "fidelity"
INSTALL = "pip install 'plait[fidelity]'"


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def count(oracle: Oracle, clone: Path, seed: int, number: int) -> tuple[int, int]:
    """Return how many new cases were run, and in how many ours differs."""
    rows = [oracle.same(theirs, ours) for _, theirs, ours in oracle.run(clone, seed, number)]
    return len(rows), rows.count(False)


def find_clone(oracle: Oracle, folder: Path, make: bool) -> Path:
    """Return the clone of an oracle's repository; make it if that is asked for. Raises `LookupError` without one."""
    url = f"https://github.com/{oracle.repository}"
    target = folder / oracle.repository.replace("/", "+")
    if make and oracle.clone(folder) is None:
        folder.mkdir(parents=True, exist_ok=True)
        words = ["git", "clone", "--quiet", "--no-checkout", url, str(target)]
        subprocess.run(words, check=False, capture_output=True)
    clone = oracle.clone(folder)
    if clone is None:
        raise LookupError(f"no clone of {oracle.repository}: git clone --no-checkout {url} {target}")
    return clone


def main(words: list[str]) -> int:
    """Run the oracles, whatever becomes of the others."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--trees", type=Path, default=TREES, help="where the files of each commit are put")
    parser.add_argument("--clone", action="store_true", help="clone the repositories that are missing, from GitHub")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(words)
    known = oracles()
    if unknown := [name for name in asked.names if name not in known]:
        parser.error(f"unknown oracle: {', '.join(unknown)}; known: {', '.join(known)}")
    ran = bad = failed = 0
    for name in asked.names or known:
        oracle = known[name]
        try:
            files = oracle.checkout(find_clone(oracle, asked.folder, asked.clone), asked.trees)
            cases, differ = oracle.write(files) if asked.write else count(oracle, files, asked.seed, asked.number)
        except ModuleNotFoundError as error:
            failed += 1
            say(f"{name:24} needs the package {error.name}: {INSTALL}")
        except Exception as error:
            failed += 1
            reason = str(error) if isinstance(error, LookupError) else f"{type(error).__name__}: {error}"
            say(f"{name:24} could not run: {reason}")
        else:
            ran += 1
            bad += differ > 0 and not oracle.differs
            say(f"{name:24} {cases:6,} cases {differ:5,} differ  {oracle.differs if differ else ''}")
    say(f"{ran} of {ran + failed} oracles ran, {bad} with differences that are not documented")
    return int(bad + failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
