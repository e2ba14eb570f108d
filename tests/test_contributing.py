"""A plugin of plait's own needs two files: its class and its test. `plait new` writes both halves; this splits them,
puts them into a copy of the tree and runs the checks that hold every plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait import core, planners, policies, tasks, workers
from plait.apps.new.command import new
from scripts.checkout import python_path

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "planner": (planners, "votes", "tests/planners"),
    "policy": (policies, "stop", "tests/policies"),
    "worker": (workers, "", "tests/workers"),
    "task": (tasks, "", "tests/tasks"),
}
"""By kind: package and folder of the class, and folder of the test."""
GENERIC = [
    "tests/test_architecture.py",
    "tests/test_vocabulary.py",
    "tests/test_no_prose.py",
    "tests/planners/test_contract.py",
    "tests/complexity/test_curves.py",
    "tests/oracles/test_fidelity.py",
    "tests/apps/test_lost.py",
    "tests/test_docs.py::test_the_reference_is_what_the_docstrings_say",
    "tests/test_docs.py::test_the_reference_has_every_public_name_and_plugin",
]
"""Tests over every plugin."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tree, tracked files alone, in a repository of its own."""
    tree = tmp_path / "tree"
    tree.mkdir()
    script = f"git -C '{ROOT}' ls-files -z | tar -C '{ROOT}' --null -T - -c | tar -x && git init -q && git add -A"
    subprocess.run(["bash", "-ec", script], cwd=tree, check=True)
    return tree


def house_imports(lines: str, relative: bool) -> str:
    """Return imports as plugins of plait write them: each name from its own module of the core."""

    def home(match: re.Match[str]) -> str:
        names = [name for name in match[2].split(", ") if name != "Orchestrator"]
        homes = {name: getattr(plait if hasattr(plait, name) else core, name).__module__ for name in names}
        return "\n".join(f"from {module} import {name}" for name, module in homes.items())

    lines = re.sub(r"^from plait(\.core)? import (.*)$", home, lines, flags=re.MULTILINE)
    return lines.replace("from plait.core", "from ..core") if relative else lines


def split(text: str, kind: str, module: str, name: str) -> tuple[str, str]:
    """Return the class and the test of a file that `plait new` has written."""
    head, mark, rest = text.partition("\n\nREPLIES = ")
    if not mark:
        head, mark, rest = text.partition("\n\ndef test_")
    imports, between, body = head.partition("\n\n\nclass ")
    used = "\n".join(line for line in imports.splitlines() if "scripted" not in line)
    made = house_imports(re.sub(r"\n\nTry it:.*?\n(?=\"\"\")", "", used, flags=re.DOTALL), kind == "task")
    made += f'\n\n__all__ = ["{name}"]'
    tests = f'"""Tests of `{name}`."""\n\nfrom __future__ import annotations\n\nfrom plait import Orchestrator\n'
    tests += "from plait.workers.scripted import Reply, Scripted\n"
    return f"{made}{between}{body}\n", f"{tests}from {module} import {name}\n{mark}{rest}"


def run(tree: Path, *words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(tree)}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_each_kind_is_added_in_two_files(copy: Path, tmp_path: Path) -> None:
    tests: list[str] = []
    for kind, (package, folder, place) in PLACES.items():
        stem, name = f"second_{kind}", f"Second{kind.capitalize()}"
        new(kind, f"second-{kind}", tmp_path)
        home = copy / Path(next(iter(package.__path__))).resolve().relative_to(ROOT) / folder
        module = ".".join(filter(None, (package.__name__, folder, stem)))
        made, test = split((tmp_path / f"{stem}.py").read_text(encoding="utf-8"), kind, module, name)
        (home / f"{stem}.py").write_text(made, encoding="utf-8")
        (copy / place / f"test_{stem}.py").write_text(test, encoding="utf-8")
        tests.append(f"{place}/test_{stem}.py")
    subprocess.run(["git", "add", "-AN"], cwd=copy, check=True)
    run(copy, "-m", "ruff", "check", "-q", "--fix", ".")
    run(copy, "-m", "ruff", "format", "-q", ".")
    changed = subprocess.run(["git", "diff", "--name-only"], cwd=copy, check=True, capture_output=True, text=True)
    assert len(changed.stdout.split()) == 2 * len(PLACES), changed.stdout
    run(copy, "scripts/reference.py")  # `make docs` writes these pages
    quick = ["-m", "not slow and not gpu and not engine", "-k", "not live"]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *quick, *tests, *GENERIC)
