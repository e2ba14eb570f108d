"""Planner `react-ahead`: patterns of calls, calls before the model asks for them, and what they may not do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError, PluginError
from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin, ToolCall
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import ToolSpec
from plait.planners.tools.react import React
from plait.runtime.plugins.loader import Plugins
from plait_research.call_patterns import CallPattern, SeenCall, Source, count_patterns, predict_calls
from plait_research.planners.react_ahead import ReactAhead
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import SimReport, simulate
from tests.machine.invariants import check_invariants
from tests.planners.test_react import call

USERS = {"user": {"orders": ["#W11", "#W22"], "id": "mia_li_3668"}}
READS = ("user", "order", "look")
SPECS = (
    *(ToolSpec(name=name, parameters={"type": "object", "properties": {"id": {"type": "string"}}}) for name in READS),
    ToolSpec(name="guarded", approve=True),
    ToolSpec(name="write", side_effects=True),
)
FIRST = CallPattern(after="", tool="user", sources={"id": Source(shape="[a-z]+_[a-z]+_[0-9]{4}")}, predicted=9, right=9)
ORDERS = CallPattern(
    after="user", tool="order", sources={"id": Source(tool="user", path=("orders", "*"))}, predicted=9, right=8
)
QUESTION = "I am mia_li_3668. Where are my orders?"


def seen(tool: str, result: object = "", **arguments: Any) -> SeenCall:
    return SeenCall(tool, arguments, result if isinstance(result, str) else json.dumps(result))


# -- patterns ----------------------------------------------------------------------------------------------------------


def test_patterns_are_read_from_runs_and_judged_by_later_ones() -> None:
    turns = [[seen("user", USERS["user"], id="mia_li_3668")], [seen("order", {"at": "x"}, id="#W11")]]
    patterns = count_patterns((), turns, QUESTION)
    assert {(each.predicted, each.right) for each in patterns} == {(0, 0)}  # not by the run that they come from
    other = [
        [seen("user", {"orders": ["#W7", "#W8"], "id": "al_bo_1234"}, id="al_bo_1234")],
        [seen("order", {}, id="#W8")],
    ]
    patterns = count_patterns(patterns, other, "al_bo_1234 here")
    counts = {(each.after, *each.sources["id"].model_dump(exclude_defaults=True)): each for each in patterns}
    orders = next(each for each in patterns if each.sources["id"] == ORDERS.sources["id"])
    assert (orders.predicted, orders.right, orders.probability) == (2, 1, 2 / 6)
    users = next(each for each in patterns if each.sources["id"] == FIRST.sources["id"])
    assert (users.after, users.predicted, users.right) == ("", 1, 1)
    constant = next(each for each in patterns if each.sources["id"].constant == "#W11")
    assert (constant.predicted, constant.right) == (1, 0) and counts


def test_predictions_have_the_values_of_now() -> None:
    assert [*predict_calls([FIRST, ORDERS], [], QUESTION)] == ['user {"id": "mia_li_3668"}']
    turns = [[seen("user", {"orders": ["#W7", "#W8"]}, id="x")]]
    found = predict_calls([FIRST, ORDERS], turns, QUESTION)
    assert [each.arguments for _, each in found.values()] == [{"id": "#W7"}, {"id": "#W8"}]
    assert {p for p, _ in found.values()} == {ORDERS.probability}
    assert predict_calls([ORDERS], [[seen("user", "no JSON", id="x")]], "") == {}
    assert predict_calls([ORDERS], [[SeenCall("user", {}, '{"orders": ["#W7"]}', ok=False)]], "") == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a_1", "#W11", "x", "", "é9x8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
calls = st.builds(
    SeenCall, st.sampled_from(["f", "g"]), st.dictionaries(st.sampled_from("ab"), values, max_size=2),
    values.map(json.dumps) | st.text(max_size=12), st.booleans(),
)  # fmt: skip


@given(st.lists(st.lists(st.lists(calls, min_size=1, max_size=2), max_size=4), max_size=3), st.text(max_size=20))
def test_any_calls_can_be_counted_and_predicted(runs: list[list[list[SeenCall]]], question: str) -> None:
    patterns: Sequence[CallPattern] = ()
    for turns in runs:
        patterns = count_patterns(patterns, turns, question)
        assert all(0 <= each.right <= each.predicted for each in patterns) and len(patterns) <= 256
        for place in range(len(turns)):
            for key, (p, found) in predict_calls(patterns, turns[:place], question).items():
                assert key == found.key and 0 < p < 1
    assert [CallPattern.model_validate_json(each.model_dump_json()) for each in patterns] == [*patterns]


# -- the planner -------------------------------------------------------------------------------------------------------


def play(
    planner: React, turns: Sequence[str], tools: Callable[[str, Mapping[str, Any]], object], seconds: float = 1.0
) -> tuple[SimReport, list[str], list[list[str]]]:
    """Run a scripted model; return the report, the calls in order of their starts, and what the model saw last."""
    made: list[str] = []
    shown: list[list[str]] = []

    def outcome(job: Job, _: Random) -> Result | Failure:
        if isinstance(job.op, ToolCall):
            made.append(f"{job.op.tool} {job.op.args.get('id', '')}".strip())
            value = tools(job.op.tool, job.op.args)
            return value if isinstance(value, Failure) else Result(value=json.loads(json.dumps(value)))
        assert isinstance(job.op, ModelCall)
        shown.append([message.content or "" for message in job.op.messages if message.role == "tool"])
        text = turns[sum(message.role == "assistant" for message in job.op.messages)]
        return Result(value=text, usage=Usage(completion=20), finish="stop")

    report = simulate(
        Request(text=QUESTION), planner=planner, hosts=[Host("host", decode_rate=20.0)],
        latency=LatencyModel(call=lambda job, rng: seconds), outcome=outcome, tools=SPECS, check=check_invariants,
    )  # fmt: skip
    return report, made, shown


def answer_of(report: SimReport) -> object:
    return report.result and report.result.value


def answer_by_name(tool: str, arguments: Mapping[str, Any]) -> object:
    return USERS.get(tool, {"at": f"{tool} {arguments.get('id')}"})


SCRIPT = (call("user", id="mia_li_3668"), call("order", id="#W22"), "on its way")


def test_a_foreseen_call_runs_beside_the_turn_and_is_made_once() -> None:
    plain, made, shown = play(React(), SCRIPT, answer_by_name)
    ahead, early, same = play(ReactAhead(patterns=(FIRST, ORDERS)), SCRIPT, answer_by_name)
    assert same == shown and answer_of(ahead) == answer_of(plain) == "on its way"
    assert (made, early) == (["user mia_li_3668", "order #W22"], ["user mia_li_3668", "order #W11", "order #W22"])
    assert plain.makespan - ahead.makespan == pytest.approx(2.0, abs=0.05)  # two calls of a second, within turns of one


def test_a_call_that_is_not_asked_for_is_cancelled_with_its_turn() -> None:
    report, made, _ = play(ReactAhead(patterns=(FIRST,)), ("nothing to look up",), answer_by_name, seconds=30.0)
    assert made == ["user mia_li_3668"] and report.makespan == pytest.approx(1.0, abs=0.1)
    assert [each.end_in for each in report.spans if each.kind == "call"] == ["stopped"]


def test_nothing_that_lasts_or_needs_a_person_is_called_ahead() -> None:
    sure = [
        CallPattern(after="", tool=name, predicted=99, right=99) for name in ("write", "guarded", "unknown", "look")
    ]
    _, made, _ = play(ReactAhead(patterns=tuple(sure), max_ahead=9), ("done",), answer_by_name)
    assert made == ["look"]


def test_results_from_before_a_side_effect_are_not_used() -> None:
    count = {"order": 0}

    def tools(tool: str, arguments: Mapping[str, Any]) -> object:
        count["order"] += tool == "order"
        return {"version": count["order"]} if tool == "order" else USERS.get(tool, "ok")

    script = (call("user", id="mia_li_3668"), call("write"), call("order", id="#W11"), "done")
    _, made, shown = play(ReactAhead(patterns=(ORDERS,), max_ahead=1), script, tools, seconds=0.1)
    assert made == ["user mia_li_3668", "order #W11", "write", "order #W11"] and shown[-1][-1] == '{"version":2}'


def test_a_failed_call_is_shown_and_may_be_tried_again() -> None:
    fails = [True, False]

    def tools(tool: str, arguments: Mapping[str, Any]) -> object:
        failed = tool == "user" and fails.pop(0)
        return Failure(kind="ToolError", message="gone") if failed else answer_by_name(tool, arguments)

    script = (call("user", id="mia_li_3668"), call("user", id="mia_li_3668"), "done")
    _, made, shown = play(ReactAhead(patterns=(FIRST,)), script, tools)
    assert made == ["user mia_li_3668"] * 2
    assert shown[-1][0].startswith("error: ") and json.loads(shown[-1][1]) == USERS["user"]


def test_a_failed_guess_keeps_no_place() -> None:
    guesses = [
        CallPattern(after=after, tool="look", sources={"id": Source(constant=name)}, predicted=9, right=right)
        for after, name, right in (("", "a", 9), ("order", "a", 9), ("order", "b", 8))
    ]

    def tools(tool: str, arguments: Mapping[str, Any]) -> object:
        failed = arguments.get("id") == "a"
        return Failure(kind="ToolError", message="gone") if failed else answer_by_name(tool, arguments)

    script = (call("order", id="1"), "done")
    _, made, _ = play(ReactAhead(patterns=tuple(guesses), max_ahead=1), script, tools, seconds=0.1)
    assert made == ["look a", "order 1", "look b"]


def test_wrong_guesses_end_by_their_limit() -> None:
    guesses = [
        CallPattern(after=after, tool="look", sources={"id": Source(constant=number)}, predicted=9, right=9)
        for number in range(9)
        for after in ("", "order")
    ]
    script = (*(call("order", id=f"{number}") for number in range(6)), "done")
    _, made, _ = play(ReactAhead(patterns=tuple(guesses), max_wasted=3), script, answer_by_name, seconds=0.1)
    assert sum(each.startswith("look") for each in made) == 3


@given(
    st.lists(
        st.lists(st.sampled_from(["user mia_li_3668", "order #W11", "order #W22", "look x", "write"]), max_size=3),
        max_size=5,
    ),
    st.sampled_from([(), (FIRST,), (ORDERS,), (FIRST, ORDERS)]),
    st.sampled_from([0.0, 0.2, 5.0]),
)
def test_the_model_sees_what_it_sees_with_react(
    turns: list[list[str]], patterns: tuple[CallPattern, ...], seconds: float
) -> None:
    written = [
        "".join(
            call(name, **({"id": given} if given else {})) for name, _, given in (each.partition(" ") for each in turn)
        )
        for turn in turns
    ]
    script = [*(text or "done" for text in written), "done"]
    state = {"writes": 0}

    def tools(tool: str, arguments: Mapping[str, Any]) -> object:
        state["writes"] += tool == "write"
        return answer_by_name(tool, arguments)

    plain = play(React(), script, tools, seconds)
    plain_writes, state["writes"] = state["writes"], 0
    ahead = play(ReactAhead(patterns=patterns), script, tools, seconds)
    assert ahead[2] == plain[2] and answer_of(ahead[0]) == answer_of(plain[0]) and state["writes"] == plain_writes
    assert ahead[0].makespan <= plain[0].makespan + 0.1  # a cancelled call ends a moment after the run's last step


def test_without_patterns_it_is_react() -> None:
    plain, ahead = play(React(), SCRIPT, answer_by_name), play(ReactAhead(), SCRIPT, answer_by_name)
    assert plain == ahead


@pytest.mark.parametrize(
    "options",
    [
        {"patterns": [{"after": "", "tool": "x", "predicted": -1}]},
        {"patterns": [{"after": ""}]},
        {"threshold": 2},
        {"learn": True, "path": "x.json"},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((FieldError, PluginError)):
        Plugins().planner(Plugin(name="react-ahead", options=options))
