"""The merge `equivalent`, in the machine with a tool, and the tool `math_equal`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import JsonValue

from orchestrator.core.errors import ToolError
from orchestrator.core.ir import Result
from orchestrator.core.nodes import State
from orchestrator.core.view import Branch
from policies.merge.equivalent import Equivalent
from tests.policies.branches import LETTERS, branches, ended
from workers import _math_equal


def after(values: list[str], said: JsonValue, state: State = State.DONE) -> tuple[object, str]:
    """What a vote comes to when the tool has said something."""
    made = branches(*values)
    first = Equivalent().merge(made, LETTERS)
    assert first.patch is not None
    call, join = first.patch.steps
    assert call.op.kind == "call" and join.op.kind == "join" and join.needs[0] == call.name
    result = Result(value=said) if state is State.DONE else None
    called = Branch(call.name, "r:call", state, result, None, 0)
    merge = Equivalent.model_validate(join.op.merge.options)
    verdict = merge.merge([called, *made], LETTERS)
    return verdict.value, verdict.why


def test_votes_are_counted_by_the_tools_classes() -> None:
    assert after(["a", "b", "b", "c", "a", "d"], [0, 1, 0, 1]) == (
        "a",
        "3 of 6 votes, margin 0, a tie settled by order; 4 answers in 2 classes",
    )
    assert after(["b", "b", "a", "c", "d"], [0, 1, 1, 1])[0] == "a"


def test_each_different_answer_is_asked_about_once() -> None:
    verdict = Equivalent(tool="same").merge([*branches("b", "a", "b", "?"), ended("b5", State.FAILED)], LETTERS)
    assert verdict.patch is not None
    op = verdict.patch.steps[0].op
    assert op.kind == "call" and op.tool == "same" and op.args == {"answers": ["b", "a"]}


def test_one_answer_is_not_asked_about() -> None:
    verdict = Equivalent().merge(branches("a", "a"), LETTERS)
    assert (verdict.value, verdict.patch) == ("a", None)


@pytest.mark.parametrize("said", [None, [0], [0, 2], [1, 1], [0, True], ["0", "1"], {"0": 0}, [0, -1]])
def test_classes_that_make_no_sense_do_not_count(said: JsonValue) -> None:
    value, why = after(["a", "b", "b"], said)
    assert value == "b" and "math_equal gave no classes" in why


def test_a_tool_that_fails_leaves_the_tasks_equality() -> None:
    assert after(["a", "b", "b"], None, State.FAILED)[0] == "b"


# --- the tool ---------------------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_math_verify_says_what_is_the_same() -> None:
    pytest.importorskip("math_verify")
    answers = [r"\frac{1}{2}", "0.5", "2x+2", "2(x+1)", r"\sin^2 x + \cos^2 x", "1", "no math at all"]
    assert _math_equal.math_equal(answers) == [0, 0, 2, 2, 4, 4, 6]


def test_what_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs, pid = tmp_path / "hangs", tmp_path / "pid"
    hangs.write_text(f"#!/bin/sh\necho $$ > {pid}\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(_math_equal, "SECONDS", 0.5)
    monkeypatch.setattr(_math_equal.sys, "executable", str(hangs))
    with pytest.raises(ToolError, match="was not done with 1 answers"):
        _math_equal.math_equal(["9^9^9^9"])
    assert not Path(f"/proc/{pid.read_text().strip()}").exists(), "it is gone"
