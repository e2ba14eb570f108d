"""How many small faults the tests find: mutants of the machine, the core, the planners and the policies.

    taskset -c 1 python -m scripts.mutants [--count 200] [--seed 1] [--minutes 15] [--out mutants.jsonl]

A mutant is the sources with one change: another comparison, `and` for `or`, plus for minus, a number one larger, a
condition turned round, a statement left out. A sample is drawn with a seed. Each mutant is written into a copy of the
checkout, where the tests of its area run: first the files that import its module, then the rest of the folder. It is
*killed* if one fails or does not end, else it has *survived*. The results are lines of JSON, so a run that is ended
goes on where it was when it is called again. Whether a survivor is the same program as before, only a person can say:
write `equivalent` in place of `survived`, and the report counts it apart. The share is of those that are not
equivalent.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
AREAS = {
    "orchestrator/machine": ("tests/machine", "tests/property"),
    "orchestrator/core": ("tests/core",),
    "planners": ("tests/planners",),
    "policies": ("tests/policies",),
}
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip

MUTABLE = (
    ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant, ast.If, ast.While, ast.IfExp, ast.Expr,
    ast.AugAssign, ast.Continue, ast.Break, ast.Return,
)  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file."""

    path: str
    number: int
    """Which of the changes that can be made to the file."""
    said: str
    source: str

    @property
    def name(self) -> str:
        """What its result is kept under; it lasts as long as the file does not change."""
        return f"{self.path}:{self.said}#{self.number}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in a node's place, with a word for it."""
    if not isinstance(node, MUTABLE):  # a copy of each whole class would take minutes
        return
    new = copy.copy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            new.ops = [COMPARED[type(op)]()]
            yield "comparison", new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield "and-or", new
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            new.op = COMPUTED[type(op)]()
            yield "arithmetic", new
        case ast.UnaryOp(op=ast.Not()):
            yield "not", new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
            yield "boolean", new
        case ast.Constant(value=int() | float() as value):
            new.value = value + 1
            yield "number", new
        case ast.If() | ast.While() | ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), new.test)
            yield "condition", new
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "left out", ast.Pass()
        case ast.Return(value=ast.expr()) if not (isinstance(new.value, ast.Constant) and new.value.value is None):
            new.value = ast.Constant(None)
            yield "returns None", new
        case _:
            pass


def size(path: Path) -> int:
    """Return how many mutants a file has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = {id(each) for node in ast.walk(tree) for each in _annotations(node)}
    below = (each for parent in ast.walk(tree) if id(parent) not in kept for each in ast.iter_child_nodes(parent))
    return sum(1 for node in below if id(node) not in kept for _ in changes(node))


def mutants_of(path: Path, wanted: set[int]) -> list[Mutant]:
    """Return the mutants of a file that have these numbers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # An annotation changes nothing that runs, and its names and numbers are many.
    kept = {id(each) for node in ast.walk(tree) for each in _annotations(node)}
    found: list[Mutant] = []
    number = -1
    for parent in ast.walk(tree):
        if id(parent) in kept:
            continue
        for field, value in ast.iter_fields(parent):
            for at, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or id(node) in kept:
                    continue
                for word, new in changes(node):
                    number += 1
                    if number not in wanted:
                        continue
                    _put(parent, field, at, new)
                    said = f"{getattr(node, 'lineno', 0)} {word}"
                    name = path.relative_to(ROOT).as_posix()
                    found.append(Mutant(name, number, said, ast.unparse(ast.fix_missing_locations(tree))))
                    _put(parent, field, at, node)
    return found


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            yield from ast.walk(part)


def _put(parent: ast.AST, field: str, at: int, node: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[at] = node
    else:
        setattr(parent, field, node)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return a sample of the mutants of all areas."""
    files = [path for area in AREAS for path in sorted((ROOT / area).rglob("*.py"))]
    rng = random.Random(seed)
    # First where, then what: to write every mutant of every file would take minutes.
    places = [(path, number) for path in files for number in range(size(path))]
    chosen = rng.sample(places, min(count, len(places)))
    wanted: dict[Path, set[int]] = collections.defaultdict(set)
    for path, number in chosen:
        wanted[path].add(number)
    made = {(path, each.number): each for path, those in wanted.items() for each in mutants_of(path, those)}
    return [made[place] for place in chosen]


def stages(mutant: Mutant) -> list[list[str]]:
    """Return the tests of a mutant, those that import its module first."""
    folders = next(tests for area, tests in AREAS.items() if mutant.path.startswith(f"{area}/"))
    path = Path(mutant.path)
    module = path.parent.name if path.stem == "__init__" else path.stem
    imports = re.compile(rf"^\s*(from|import) .*\b{module}\b", re.MULTILINE)
    files = [path for folder in folders for path in sorted((ROOT / folder).glob("**/test_*.py"))]
    near = [str(path.relative_to(ROOT)) for path in files if imports.search(path.read_text(encoding="utf-8"))]
    return [each for each in (near, [*folders, *(f"--ignore={file}" for file in near)]) if each]


def killed_by(mutant: Mutant, copied: Path, seconds: float) -> str | None:
    """Return what kills a mutant, `None` if nothing does. `seconds`: a test that takes longer hangs, and kills it."""
    target = copied / mutant.path
    before = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copied / "src"), "PURE_PLAIT": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not engine and not slow and not gpu", "--tb=no"]
    options += [f"--timeout={seconds}"]
    try:
        for tests in stages(mutant):
            command = [sys.executable, "-m", "pytest", *options, *tests]
            try:
                done = subprocess.run(
                    command, check=False, cwd=copied, env=environment, capture_output=True, text=True, timeout=3600
                )
            except subprocess.TimeoutExpired:
                return "it never ends"
            if done.returncode not in (0, 5):  # 5: no test was chosen
                lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return (lines or [f"exit code {done.returncode}"])[0]
    finally:
        target.write_text(before, encoding="utf-8")
    return None


def report(rows: list[dict[str, str]]) -> str:
    """Return the counts in a line."""
    counts = collections.Counter(row["verdict"] for row in rows)
    live = counts["killed"] + counts["survived"]
    share = f", {counts['killed'] / live:.1%} of those that are not equivalent" if live else ""
    return f"{counts['killed']} killed, {counts['survived']} survived, {counts['equivalent']} equivalent{share}"


def main() -> None:
    """Draw, run what has no result yet, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=15.0, help="begin no other mutant after that")
    parser.add_argument("--seconds", type=float, default=300.0, help="what one test may take")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    there = {row["mutant"] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "plait"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.so", ".hypothesis")
        shutil.copytree(ROOT, copied, symlinks=True, ignore=ignored)
        sample = drawn(asked.count, asked.seed)
        until = time.monotonic() + 60 * asked.minutes
        for mutant in sample:
            if mutant.name in there:
                continue
            if time.monotonic() > until:
                break
            why = killed_by(mutant, copied, asked.seconds)
            row = {"mutant": mutant.name, "verdict": "survived" if why is None else "killed", "by": why or ""}
            rows.append(row)
            with asked.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            sys.stdout.write(f"{row['verdict']}  {mutant.name}  {row['by']}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{report(rows)}\n")


if __name__ == "__main__":
    main()
