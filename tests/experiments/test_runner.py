"""`python -m experiments`: every folder is listed with its question and runs by its name; the index is what it says."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as runner
from experiments._tools.measure import Row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and not path.name.startswith("_"))


def test_every_folder_is_an_experiment_with_a_question() -> None:
    asked = runner.questions()
    assert sorted(asked) == NAMES
    assert len(set(asked.values())) == len(NAMES)
    assert all(20 < len(question) <= 110 and question[-1] in "?." for question in asked.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_has_what_the_runner_calls(name: str) -> None:
    tree = ast.parse((FOLDER / name / "run.py").read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    is_async = {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    assert "main" in names - is_async or "run" in is_async


def test_no_experiment_imports_another() -> None:
    for path in FOLDER.rglob("*.py"):
        home, depth = path.relative_to(FOLDER).parts[0], len(path.relative_to(FOLDER).parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                target = parts[0] if node.level == depth else parts[1] if parts[0] == "experiments" else home
                assert target in {home, "_tools"} or path.name == "__main__.py", f"{path}: {node.module}"


def test_the_index_is_what_the_folders_say() -> None:
    spec = importlib.util.spec_from_file_location("index", ROOT / "scripts" / "experiments.py")
    assert spec is not None and spec.loader is not None
    index = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(index)
    assert index.PAGE.read_text(encoding="utf-8") == index.page(), "run `make docs`"


def test_a_name_that_is_not_there_is_refused_with_one_that_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "votse"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no experiment 'votse'" in done.stderr and "votes" in done.stderr


def test_rows_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.signals import run as signals

    async def rows() -> list[Row]:
        return [Row("a thing", "1 s", "2 s", "0.5", "≤ 1")]

    monkeypatch.setattr(signals, "run", rows)
    words = ["experiments", "signals", "--json", str(tmp_path / "rows.json"), "--markdown", str(tmp_path / "page.md")]
    monkeypatch.setattr(sys, "argv", words)
    assert runner.main() == 0
    assert "a thing" in capsys.readouterr().out
    assert '"ours": "1 s"' in (tmp_path / "rows.json").read_text()
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# What does it cost") and "| a thing | 1 s | 2 s | 0.5 | ≤ 1 |" in page
