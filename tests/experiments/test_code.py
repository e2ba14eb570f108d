"""Study `code`: its mutants are known to be wrong, and rules win where they shall."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments._tools.command import Given
from experiments._tools.functions import Function, functions, returned
from experiments.code_search import run as code
from experiments.code_search.run import row_of, run
from plait.apps.common.options import Common


@pytest.fixture(scope="module")
def few() -> list[Function]:
    return functions(20, 3)


def test_mutants_pass_the_public_case_or_fail_it_and_are_wrong_on_a_hidden_one(few: list[Function]) -> None:
    assert len({each.right for each in few}) == 20
    for function in few:
        assert function.is_right(function.right) and not function.is_right("def f(items): return 0 / 0")
        first = returned(function.right, function.inputs[0])
        assert all(
            returned(each, function.inputs[0]) == first and not function.is_right(each) for each in function.wrong
        )
        assert all(returned(each, function.inputs[0]) != first for each in function.caught)


def test_votes_of_right_tests_find_the_right_program_and_majority_does_not(few: list[Function]) -> None:
    row = row_of("three shared bugs", 0.0, 16, 0, 0.0, few, 5)
    assert row.any >= 0.9
    assert row.selected["votes"] >= row.any - 0.1 > row.selected["majority"] + 0.1
    assert row.selected["votes"] > row.selected["random"]


def test_a_study_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "settings", lambda: [("half caught", 0.2, 4, 1, 0.3)])
    given = Given(out=tmp_path, records=tmp_path, problems=4, common=Common(seed=1))
    page = run(given)
    assert "| 4 | 1 | 30% |" in page
    monkeypatch.setattr(code, "row_of", None)
    assert run(given) == page
    assert len(json.loads((tmp_path / "data" / "code_search.json").read_text())["4 functions, seed 1"]) == 1
