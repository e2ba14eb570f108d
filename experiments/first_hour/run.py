"""How many wrong turns does somebody take who reads only the documents?

Forty tasks of the first hour: twenty of use, twenty of change (`use.toml`, `change.toml`). Each has an end that a
script checks. `data/turns.jsonl` says how often somebody turned wrong in each, and where; `did` of a task is what did
it at last, which the tests do again. A wrong turn is a command that was refused or did something else, or a page that
did not help.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.checkout import python_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROUNDS = ("before", "after")


@dataclass(frozen=True, slots=True)
class HourTask:
    """The task's text, its files, and the check of the end."""

    name: str
    asks: str
    check: str
    did: str = ""
    given: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def of_use(self) -> bool:
        """Whether it is done with plait as it is, not in a checkout of it."""
        return self.name.startswith("u")

    def begin(self, folder: Path) -> None:
        """Write the files that the person is given."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.given.items():
            (folder / name).write_text(text.lstrip("\n"), encoding="utf-8")

    def bash(self, script: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a script in the folder: with runs of its own, and with the plait of the folder if it is a checkout."""
        source = ROOT if self.of_use else folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PLAIT_")}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
            "PYTHONPATH": python_path(source),
            "XDG_STATE_HOME": str(folder / ".state"),
        }
        return subprocess.run(
            ["bash", "-eu", "-c", script],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def tasks() -> dict[str, HourTask]:
    """Return the tasks by name."""
    return {
        name: HourTask(name, **told)
        for file in ("use.toml", "change.toml")
        for name, told in tomllib.loads((HERE / file).read_text(encoding="utf-8")).items()
    }


def page() -> Iterator[str]:
    """Return the lines of the table: a row for each task, with the wrong turns of each round and the fix."""
    turns: dict[tuple[str, str], dict[str, Any]] = {}
    for line in (HERE / "data" / "turns.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        turns[row["task"], row["round"]] = row
    yield "| task | asks | before | after | what went wrong, and the fix |"
    yield "|---|---|---|---|---|"
    for name, task in tasks().items():
        told = [turns.get((name, which), {}) for which in ROUNDS]
        counts = " | ".join(str(row.get("turns", "")) for row in told)
        words = " ".join(row["what"] for row in told if row.get("what"))
        yield f"| {name} | {task.asks} | {counts} | {words} |"


def main() -> None:
    """List the tasks, begin one, check one, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments first_hour", description=__doc__)
    parser.add_argument("--begin", metavar="TASK", help="write the files of a task, and say what it asks")
    parser.add_argument("--done", metavar="TASK", help="say whether a task is done")
    parser.add_argument("--in", dest="folder", type=Path, default=Path(), help="where (a checkout, for changes)")
    parser.add_argument("--table", action="store_true", help="print the wrong turns of each task")
    options = parser.parse_args()
    known = tasks()
    if options.table:
        sys.stdout.write("\n".join(page()) + "\n")
    elif options.begin:
        known[options.begin].begin(options.folder)
        sys.stdout.write(known[options.begin].asks + "\n")
    elif options.done:
        task = known[options.done]
        ended = task.bash(task.check, options.folder.resolve())
        sys.stdout.write("done\n" if ended.returncode == 0 else f"not done\n{ended.stdout}{ended.stderr}")
        sys.exit(ended.returncode)
    else:
        sys.stdout.write("".join(f"{name}  {task.asks}\n" for name, task in known.items()))
