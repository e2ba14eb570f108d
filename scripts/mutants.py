"""How many small faults the tests find: mutants of the machine, the core, the planners and the policies.

    taskset -c 1 python -m scripts.mutants [--count 200] [--seed 1] [--minutes 15] [--out mutants.jsonl]

A mutant is the sources with one change: another comparison, `and` for `or`, plus for minus, a number one larger, a
condition turned round, a statement left out. A sample is drawn with a seed. First the tests run once under coverage,
folder by folder, and which lines each executes is kept (`scripts.covered`). Then each mutant is written into a copy of
the checkout, where a new process runs the tests that execute the changed line, the quickest first, until one fails or
takes five times its time. The mutant is *killed* then, else it has *survived*. The results are lines of JSON, so a run
that was stopped resumes when it is called again. Whether a survivor is the same program as before, only a
person can say: write `equivalent` in place of `survived`, and the report counts it apart. The share is of those that
are not equivalent.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scripts.checkout import python_path

from .covered import Covered, Test, files, limits

ROOT = Path(__file__).resolve().parent.parent
AREAS = ("orchestrator/plait/machine", "orchestrator/plait/core", "planners", "policies", "packages/plait-research")
TESTS = (
    "tests/core", "tests/machine", "tests/planners", "tests/policies", "tests/property", "tests/runtime", "tests/tasks",
)  # fmt: skip
OPTIONS = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "scripts.covered",
    "-m",
    "not engine and not slow and not gpu",
    "--tb=no",
)

FIRST = 20
"""How many tests run before the others are even collected: most mutants are killed by one of them."""
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
    change: str
    """The line, and a word for what is another there."""
    lines: frozenset[int] | None
    """The lines of its statement, `None` outside functions."""
    source: str

    @property
    def name(self) -> str:
        """What its result is kept under; it lasts as long as the file does not change."""
        return f"{self.path}:{self.change}#{self.number}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield replacements of a node, each with a label."""
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
    """Return the number of mutants of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    below = (child for parent in ast.walk(tree) if id(parent) not in kept for child in ast.iter_child_nodes(parent))
    return sum(1 for node in below if id(node) not in kept for _ in changes(node))


def mutants_of(path: Path, wanted: set[int]) -> list[Mutant]:
    """Return the mutants of a file that have these numbers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # An annotation changes nothing that runs, and its names and numbers are many.
    kept = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    name = path.relative_to(ROOT).as_posix()
    mutants: list[Mutant] = []
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
                    lines = statement_lines(node, parents)
                    _put(parent, field, at, new)
                    source = ast.unparse(ast.fix_missing_locations(tree))
                    mutants.append(Mutant(name, number, f"{getattr(node, 'lineno', 0)} {word}", lines, source))
                    _put(parent, field, at, node)
    return mutants


def statement_lines(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> frozenset[int] | None:
    """Return the lines of the statement in which a node stands (of a block those of its head), `None` outside
    functions."""
    above = [node]
    while above[-1] in parents:
        above.append(parents[above[-1]])
    at = next(at for at, part in enumerate(above) if isinstance(part, ast.stmt))
    if not any(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in above[at + 1 :]):
        return None
    # A case's pattern stands below the head of its statement, so the node's own lines count too.
    return frozenset(_lines(above[at])) | frozenset(_lines(node))


def _lines(node: Any) -> range:
    if isinstance(node, ast.Match):
        last = node.subject.end_lineno or node.lineno
    elif isinstance(getattr(node, "body", None), list):
        last = max(node.lineno, node.body[0].lineno - 1)
    else:
        last = node.end_lineno
    return range(node.lineno, last + 1)


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
    made = {(path, mutant.number): mutant for path, those in wanted.items() for mutant in mutants_of(path, those)}
    return [made[place] for place in chosen]


def run_tests(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run some tests of a checkout, in a process of their own: a mutant must not be imported already."""
    environment = {**os.environ, "PYTHONPATH": python_path(folder, *sys.path[1:])}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *OPTIONS, *words]
    return subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True)


def cover(kept: Path) -> None:
    """Run the folders of tests that have not run under coverage yet."""
    kept.mkdir(parents=True, exist_ok=True)
    for tests in TESTS:
        if not (kept / f"{tests.replace('/', '-')}.seconds").exists():
            run = run_tests(ROOT, "--covered", str(kept), tests)
            sys.stdout.write(f"{tests}: {run.stdout.splitlines()[-1]}\n")
            sys.stdout.flush()


def killed_by(mutant: Mutant, copied: Path, tests: list[Test]) -> str | None:
    """Return the test that kills a mutant, `None` if nothing does."""
    target, chosen = copied / mutant.path, copied / "chosen.json"
    before = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    try:
        for part in (tests[:FIRST], tests[FIRST:]):
            if not part:
                break
            chosen.write_text(json.dumps(limits(part)), encoding="utf-8")
            run = run_tests(copied, "-x", "--chosen", str(chosen), *files(part))
            if run.returncode:
                lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return (lines or [f"exit code {run.returncode}"])[0]
    finally:
        target.write_text(before, encoding="utf-8")
    return None


def report(rows: list[dict[str, Any]]) -> str:
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
    parser.add_argument("--covered", type=Path, default=Path("build/covered"), help="where what tests execute is kept")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    there = {row["mutant"] for row in rows}
    cover(asked.covered.resolve())
    covered = Covered(asked.covered.resolve())
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
            tests = covered.tests(mutant.path, mutant.lines)
            why = killed_by(mutant, copied, tests)
            verdict = "survived" if why is None else "killed"
            row = {"mutant": mutant.name, "verdict": verdict, "by": why or "", "tests": len(tests)}
            rows.append(row)
            with asked.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            sys.stdout.write(f"{row['verdict']}  {mutant.name}  {row['by']}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{report(rows)}\n")


if __name__ == "__main__":
    main()
