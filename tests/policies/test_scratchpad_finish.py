"""What the merges `scratchpad` and `finish` write and read."""

from __future__ import annotations

import pytest

from plait.core.result import Failure, Result
from plait.core.states import State
from plait.core.view import Branch
from plait.policies.merge.values import FinishMarker, Scratchpad
from plait.tasks.plain import Plain

TASK = Plain(text="q")


def branch(name: str, value: object = None, failure: Failure | None = None, state: State = State.DONE) -> Branch:
    result = Result(value=value) if state is State.DONE else None
    return Branch(name, f"r:{name}", state, result, failure, 0)


def failed(name: str, kind: str, message: str) -> Branch:
    return branch(name, failure=Failure(kind=kind, message=message), state=State.FAILED)


def test_a_scratchpad_has_every_action_and_what_became_of_it():
    entries = [
        {"text": "1. f()", "branch": "1", "thought": "first"},
        {"text": "2. g($1)", "branch": "2"},
        {"text": "3. h($2)", "branch": "3"},
        {"text": "4. i()", "error": "there is no tool 'i'"},
        {"text": "5. j()", "branch": "5"},
    ]
    branches = [
        branch("before", "0. e()\nObservation: old\n"),
        branch("1", {"a": 1}),
        failed("2", "ToolError", "boom"),
        failed("3", "DependencyFailed", "2: ToolError: boom"),
        branch("5", state=State.CANCELLED),
    ]
    verdict = Scratchpad.model_validate({"actions": entries, "earlier": "before"}).merge(branches, TASK)
    assert verdict.value == (
        "0. e()\nObservation: old\n"
        'Thought: first\n1. f()\nObservation: {"a":1}\n'
        "2. g($1)\nObservation: error: boom\n"
        "3. h($2)\nObservation: not run, because a task that it needs failed: 2: ToolError: boom\n"
        "4. i()\nObservation: not run: there is no tool 'i'\n"
        "5. j()\nObservation: none: the task was stopped\n"
    )
    assert verdict.why == "1 of 5 actions gave a result"


def test_a_scratchpad_without_entries_names_the_branches():
    verdict = Scratchpad(observation_chars=3).merge([branch("a", "long text"), branch("b", "ok")], TASK)
    assert verdict.value == "a\nObservation: lon… (6 more characters)\nb\nObservation: ok\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Thought: t\nAction: Finish(42)", "42"),
        ("Action: Finish(f(x) = (x (y)))\nmore (words)", "f(x) = (x (y))"),
        ("Action: Finish(:) is a smiley)", ":) is a smiley"),
        ("Action: Finish(open (one)", "open (one)"),
        ('Action: Finish("Paris")', "Paris"),
        ('Action: Finish("a" and "b")', '"a" and "b"'),
        ("**Action:** Finish(bold)**", "bold"),
        ("action: finish (lower)", "lower"),
        ("Action: Finish()", ""),
        ("Action: Finish(a)\n###\nAction: Finish(b)", "a"),
        ("Action: Finish(a)\n\nQuestion: next\nAction: Finish(b)", "a"),
        ("<think>\nAction: Finish(no)\n</think>\nAction: Finish(yes)", "yes"),
        ("The answer is 42.", "The answer is 42."),
        ('{"thought": "t", "action": {"response": "json"}}', "json"),
        ("Action: Replan(x)", "x"),
        ("Action: Finish 42", "42"),
        ("(" * 50_000 + "Action: Finish(" + "(" * 50_000, "(" * 50_000 + "Action: Finish(" + "(" * 50_000),
        ("Action: Finish(" + ") x" * 50_000, ") x" * 50_000),
    ],
)
def test_the_answer_is_what_stands_in_finish(text, answer):
    assert FinishMarker().merge([branch("j", text)], TASK).value == answer


@pytest.mark.parametrize(
    "text",
    [
        "Thought: hm\nAction: Replan(look again (twice))",
        '{"thought": "hm", "action": {"feedback": "look again (twice)"}}',
    ],
)
def test_another_plan_is_asked_for_where_it_is_allowed(text):
    merge = FinishMarker(may_replan=True)
    assert merge.merge([branch("j", text)], TASK).value == {"replan": "look again (twice)", "thought": "hm"}
    assert merge.merge([branch("j", "Action: Finish(Replan(x))")], TASK).value == "Replan(x)"


def test_without_a_text_there_is_no_answer():
    assert FinishMarker().merge([failed("j", "EngineError", "x")], TASK).value is None
