"""Oracles: functions of a method's authors, and ours that must give the same.

An oracle is one function of a public repository. `NAME.jsonl` beside this file holds what it returned: the first line
says whose function it is, each other line is an input and its output. They are facts; no code of theirs is here. With a
clone of the repository at hand (`python -m tests.oracles FOLDER`, `make fidelity CLONES=FOLDER`) the function itself is
run, on new inputs.
"""

from __future__ import annotations

import ast
import importlib
import json
import math
import pkgutil
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SEED = 20_26


@dataclass(frozen=True)
class Oracle:
    """A function of the authors and the same of ours, on inputs that are JSON."""

    name: str
    repository: str
    """Owner and name."""
    commit: str
    licence: str
    function: str
    """File and name of theirs."""
    cases: Callable[[random.Random], Iterator[Any]]
    theirs: Callable[[Path], Callable[[Any], Any]]
    """Returns the authors' function from a clone of the repository."""
    ours: Callable[..., Any]
    number: int = 100
    """Cases that are kept."""
    differs: str = ""
    """What differs, in one line; empty: nothing."""
    tolerance: float = 1e-9
    through: str = ""
    """What a user can name, and the case goes through: a kind of plugin, or `command`. Empty: a helper."""
    plays: bool = False
    """Ours takes their output too: a model of tests writes it, and what comes of it must be the same."""

    @property
    def file(self) -> Path:
        """Where its facts are."""
        return FOLDER / f"{self.name}.jsonl"

    def mine(self, case: Any, theirs: Any) -> Any:
        """Return what ours gives."""
        return self.ours(case, theirs) if self.plays else self.ours(case)

    def same(self, one: Any, other: Any) -> bool:
        """Whether two outputs are equal, numbers within the tolerance."""
        return _same(one, other, self.tolerance)

    def clone(self, folder: Path) -> Path | None:
        """Return the clone of its repository in a folder of clones."""
        owner, _, name = self.repository.partition("/")
        return next((path for path in (folder / f"{owner}+{name}", folder / name) if path.is_dir()), None)

    def checkout(self, clone: Path, trees: Path) -> Path:
        """Return the files of its commit, taken out of a clone once into a folder of trees. Oracles of one repository
        may name several commits. A clone without git is taken as it is. Raises `LookupError` for a commit that the
        clone lacks and that cannot be fetched."""
        if _git(clone, "rev-parse", "--git-dir").returncode or _git(clone, "rev-parse", "--show-prefix").stdout.strip():
            return clone
        tree = trees / f"{self.repository.replace('/', '+')}@{self.commit[:12]}"
        if tree.is_dir():
            return tree
        if _git(clone, "cat-file", "-e", f"{self.commit}^{{commit}}").returncode:
            _git(clone, "fetch", "--quiet", "--depth=1", "origin", self.commit)
        listed = _git(clone, "ls-tree", "-r", "-z", self.commit)
        if listed.returncode:
            reason = listed.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            advice = f"git -C {clone} fetch origin {self.commit}"
            raise LookupError(f"{clone} lacks commit {self.commit[:12]} ({reason}): {advice}")
        with tempfile.TemporaryDirectory(dir=_made(trees)) as folder:
            _write_blobs(clone, listed.stdout.decode().split("\0")[:-1], Path(folder))
            Path(folder).rename(tree)
            Path(folder).mkdir()  # what is removed at the end
        return tree

    def facts(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the first line, and the inputs and outputs."""
        first, *rest = self.file.read_text(encoding="utf-8").splitlines()
        return json.loads(first), [json.loads(line) for line in rest]

    def run(self, clone: Path, seed: int, number: int) -> Iterator[tuple[Any, Any, Any]]:
        """Run their function and ours; yield inputs and both outputs."""
        function = self.theirs(clone)
        for case, _ in zip(self.cases(random.Random(seed)), range(number), strict=False):
            plain = json.loads(json.dumps(case))
            theirs = json.loads(json.dumps(function(plain), default=_plain))
            yield plain, theirs, json.loads(json.dumps(self.mine(plain, theirs), default=_plain))

    def write(self, clone: Path) -> tuple[int, int]:
        """Write the facts; return how many there are and in how many ours differs."""
        rows = list(self.run(clone, SEED, self.number))
        differ = sum(not self.same(theirs, ours) for _, theirs, ours in rows)
        head = {
            "repository": self.repository,
            "commit": self.commit,
            "licence": self.licence,
            "function": self.function,
            "cases": len(rows),
            "differ": differ,
            "what": self.differs if differ else "",
        }
        lines = [head, *({"in": case, "out": theirs} for case, theirs, _ in rows)]
        text = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
        self.file.write_text(text, encoding="utf-8")
        return len(rows), differ


def oracles() -> dict[str, Oracle]:
    """Return all oracles by name: the `ORACLES` of the modules beside this one."""
    found: dict[str, Oracle] = {}
    for module in sorted(pkgutil.iter_modules([str(FOLDER)]), key=lambda each: each.name):
        if module.name.startswith("of_"):
            found |= {each.name: each for each in importlib.import_module(f"tests.oracles.{module.name}").ORACLES}
    return found


def take(file: Path, *names: str, **given: Any) -> dict[str, Any]:
    """Run the definitions of some names of a source file alone, with `given` for what they use, and return the names.

    So a function can be run without what its file imports. `Class.method` gives a method as a function.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    wanted: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in names:
                wanted.append(node)
            elif isinstance(node, ast.ClassDef):
                wanted += [
                    each
                    for each in node.body
                    if isinstance(each, ast.FunctionDef) and f"{node.name}.{each.name}" in names
                ]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id in names for each in targets):
                wanted.append(node)
    for node in wanted:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    space: dict[str, Any] = dict(given)
    module = ast.Module(body=[_FUTURE, *wanted], type_ignores=[])
    exec(compile(ast.fix_missing_locations(module), str(file), "exec"), space)
    return space


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(folder), *words], check=False, capture_output=True)


def _write_blobs(clone: Path, listed: list[str], folder: Path) -> None:
    """Write the files of a tree. A clone may lack its largest files, which no oracle needs: they are left out."""
    blobs: dict[str, str] = {}
    for line in listed:
        about, _, name = line.partition("\t")
        _, kind, blob = about.split()
        if kind == "blob":
            blobs[name] = blob
    read = subprocess.Popen(
        ["git", "-C", str(clone), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert read.stdin is not None and read.stdout is not None
    with read:
        for name, blob in blobs.items():
            read.stdin.write(f"{blob}\n".encode())
            read.stdin.flush()
            header = read.stdout.readline().split()
            if not header:
                break  # git ended: it could not read that object
            if header[-1] != b"missing":
                content = read.stdout.read(int(header[2]))
                read.stdout.read(1)
                target = folder / name
                if folder in target.resolve().parents:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_FUTURE = ast.ImportFrom(module="__future__", names=[ast.alias(name="annotations")], level=0)


def _plain(value: Any) -> Any:
    """Return numbers and arrays of numpy as JSON has them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], tolerance) for key in one)
    return one == other
