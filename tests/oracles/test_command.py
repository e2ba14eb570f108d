"""`make fidelity` runs each oracle on the files of its own commit, and none stops another."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import __main__ as command
from tests.oracles.harness import Oracle, take

ORACLE = Oracle(
    "one", "owner/name", "", "MIT", "rule.py rule", lambda random: iter([1, 2, 3]),
    lambda clone: take(clone / "rule.py", "rule")["rule"], lambda case: case + 1, through="policy",
)  # fmt: skip


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """A clone with two commits: the function adds 1, then 2."""
    clone = tmp_path / "clones" / "owner+name"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    found: list[str] = []
    for more in (1, 2):
        (clone / "rule.py").write_text(f"def rule(case):\n    return case + {more}\n", encoding="utf-8")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", f"add {more}")
        found.append(git(clone, "rev-parse", "HEAD"))
    return found


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *known: Oracle,
        **more: Any) -> tuple[int, list[str]]:  # fmt: skip
    monkeypatch.setattr(command, "oracles", lambda: {oracle.name: oracle for oracle in known})
    code = command.main([str(tmp_path / "clones"), "--trees", str(tmp_path / "trees")])
    return code, capsys.readouterr().out.splitlines()


def test_each_oracle_runs_the_files_of_its_commit(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        replace(ORACLE, name=name, commit=each) for name, each in zip(("one", "two"), commits, strict=True)
    )
    code, said = run(tmp_path, monkeypatch, capsys, first, second)
    assert [line.split()[:5] for line in said[:2]] == [
        ["one", "3", "cases", "0", "differ"], ["two", "3", "cases", "3", "differ"],
    ]  # fmt: skip
    assert said[2] == "2 of 2 oracles ran, 1 with differences that are not documented" and code == 1
    code, said = run(tmp_path, monkeypatch, capsys, first, replace(second, differs="theirs adds 2"))
    assert code == 0 and "theirs adds 2" in said[1], "the trees of before serve again"


def test_one_failure_does_not_stop_the_rest(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def needs(_: Path) -> Any:
        raise ModuleNotFoundError("no", name="pulp")

    def breaks(_: Path) -> Any:
        raise FileNotFoundError("rule.py")

    right = replace(ORACLE, commit=commits[0])
    code, said = run(
        tmp_path, monkeypatch, capsys, replace(right, name="other", repository="owner/other"),
        replace(right, name="lost", commit="0" * 40), replace(right, name="needs", theirs=needs),
        replace(right, name="breaks", theirs=breaks), right,
    )  # fmt: skip
    assert code == 1
    assert "no clone of owner/other: git clone" in said[0]
    assert "lacks commit 000000000000" in said[1]
    assert "needs the package pulp: pip install 'plait[fidelity]'" in said[2]
    assert "could not run: FileNotFoundError: rule.py" in said[3]
    assert said[4].split()[:5] == ["one", "3", "cases", "0", "differ"]
    assert said[5] == "1 of 5 oracles ran, 0 with differences that are not documented"


def test_a_clone_without_git_is_taken_as_it_is(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "clones" / "plain"
    plain.mkdir()
    (plain / "rule.py").write_text("def rule(case):\n    return case + 1\n", encoding="utf-8")
    code, said = run(tmp_path, monkeypatch, capsys, replace(ORACLE, repository="owner/plain", commit="0" * 40))
    assert code == 0 and said[0].split()[:5] == ["one", "3", "cases", "0", "differ"]


def test_an_unknown_name_lists_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "no-such-oracle"])
