"""Merge `tool-majority`: votes over what turns want to do, and `react` that samples its turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait import Orchestrator, Plan, Plugin, tool
from plait.core.call_config import CallConfig
from plait.core.errors import FieldError, PluginError
from plait.core.events import Job
from plait.core.interfaces import Policy
from plait.core.ops import Function, Join, ModelCall, ToolCall
from plait.core.plan import Step
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.states import State
from plait.planners.tools.react import React
from plait.policies.merge.tool_majority import ToolMajority
from plait.policies.schedule.simple import Waves
from plait.policies.stop.votes import FirstFinish
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import SimReport, simulate
from tests.policies.branches import LETTERS, branch, branches, ended

LOOK = Function(
    name="look",
    parameters={
        "type": "object",
        "properties": {"at": {"type": "string"}, "far": {"type": "integer", "default": 1}, "why": {"type": "string"}},
    },
)
WRITE = Function(name="write", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>\n"


A, B, C = call("look", at="a"), call("look", at="b"), call("write", n=1)


def chosen(by: str, *turns: str, **options: Any) -> Any:
    return ToolMajority(criterion=by, tools=(LOOK, WRITE), **options).merge(branches(*turns), LETTERS)  # type: ignore[arg-type]


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_hierarchical_votes_by_name_and_then_by_arguments() -> None:
    turns = (call("look", at="x"), A, C, C, A, B)
    verdict = chosen("hierarchical", *turns)
    assert verdict.value == {"calls": [{"name": "look", "arguments": {"at": "a"}}]}
    assert verdict.why == "names 4 of 6 votes, margin 2; look: 2 of 4 votes, margin 1"
    assert chosen("arguments", *turns[:4], B).value["calls"][0]["name"] == "write", "by arguments the looks are split"
    assert chosen("name", *turns).value == {"calls": [{"name": "look", "arguments": {"at": "x"}}]}


def test_arguments_count_as_the_tool_takes_them() -> None:
    verdict = chosen("arguments", B, B, call("look", at="a", far="1"), call("look", far=1.0, at="a"), A)
    assert verdict.winner == "b3" and "3 of 5" in verdict.why
    assert (
        ToolMajority(criterion="arguments").merge(branches(B, B, A, call("look", at="a", far=1)), LETTERS).winner
        == "b1"
    )


def test_excluded_arguments_do_not_count() -> None:
    turns = [B, B, *(call("look", at="a", why=each) for each in "xyz")]
    assert chosen("arguments", *turns).winner == "b1"
    for excluded in ("why", "look.why"):
        assert chosen("arguments", *turns, exclude=(excluded,)).value["calls"][0]["arguments"]["why"] == "x"


def test_a_multiset_has_no_order_and_counts_calls() -> None:
    turns = (C, C, A + B, B + A, A + B)
    assert chosen("multiset", *turns).winner == "b3"
    assert chosen("arguments", A + A, A + A, A, A, A).winner == "b3", "twice the same call is not one"
    assert chosen("multiset", A + B, B + A, C, C, C).winner == "b3"


def test_answering_is_an_action() -> None:
    verdict = chosen("hierarchical", A, "it is X", "it is X", "it is Y")
    assert (verdict.value, verdict.winner) == ("X", "b2")
    assert verdict.why == "names 3 of 4 votes, margin 2; answer: 2 of 3 votes, margin 1"


def test_turns_that_cannot_be_read_do_not_vote() -> None:
    verdict = chosen("hierarchical", "<tool_call>{look</tool_call>", "?", A)
    assert verdict.winner == "b3" and "no answer in b1, b2" in verdict.why
    assert chosen("hierarchical", "<tool_call>").value is None


def test_ties_go_to_the_likelier() -> None:
    some = [branch("b1", A, -2.0), branch("b2", B, -0.5)]
    assert ToolMajority().merge(some, LETTERS).winner == "b2"
    assert ToolMajority().merge([*some[:1], branch("b2", B)], LETTERS).winner == "b1"


def test_lines_of_actions_vote_too() -> None:
    turns = ("Action: look[a]", 'Action: look({"at": "a"})', "Action: look(b)")
    verdict = chosen("arguments", *turns, dialect="action", gives="text")
    assert (verdict.value, verdict.winner) == (turns[0], "b1")


# -- what makes no sense -----------------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused_in_words() -> None:
    with pytest.raises(FieldError, match="looks at none"):
        ToolMajority(criterion="name", exclude=("why",))
    with pytest.raises(FieldError, match="no tool has an argument 'when'"):
        ToolMajority(exclude=("when",), tools=(LOOK,))
    with pytest.raises(FieldError, match="need a temperature"):
        React(n=3)
    with pytest.raises(PluginError, match="the value of b2 is no text: join turns"):
        ToolMajority().merge(branches(A, {"x": 1}), LETTERS)
    report = asked(React(n=2, turn=CallConfig(temperature=0.7), merge=Plugin(name="majority")), [A])
    assert report.failure is not None and "give a merge over actions" in report.failure.message


# -- when it is certain ------------------------------------------------------------------------------------------------


TURNS = [A, B, C, A + B, "it is X", "<tool_call>", "fail"]


@given(
    st.lists(st.sampled_from(TURNS), min_size=1, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.sampled_from(["name", "arguments", "hierarchical", "multiset"]),
    st.booleans(),
)
def test_decided_is_lossless(turns: list[str], out: list[bool], by: str, exclude: bool) -> None:
    """Whenever it says so, the same is done whatever the turns say that are out."""
    merge = ToolMajority(criterion=by, exclude=("at",) if exclude and by != "name" else ())  # type: ignore[arg-type]

    def made(i: int, turn: str) -> Any:
        return ended(f"b{i}", State.FAILED) if turn == "fail" else branch(f"b{i}", turn)

    places = [i for i in range(len(turns)) if out[i]][:2]
    now = [ended(f"b{i}", State.RUNNING) if i in places else made(i, turn) for i, turn in enumerate(turns)]
    if not merge.decided(now, len(places), LETTERS):
        return
    found = set()
    for outcome in product(TURNS, repeat=len(places)):
        then = list(now)
        for place, turn in zip(places, outcome, strict=True):
            then[place] = made(place, turn)
        found.add(json.dumps(merge.merge(then, LETTERS).value))
    assert len(found) == 1


# -- in a run ----------------------------------------------------------------------------------------------------------


def asked(planner: React, turns: Sequence[str], policies: Sequence[Policy] = (), log: Any = None) -> SimReport:
    """Run `react` with samples that say `turns`, one after the other; once a tool was called, they answer."""
    left = list(turns)

    def outcome(job: Job, _: Any) -> Result | Failure:
        if log is not None:
            log.append(job)
        if isinstance(job.op, ToolCall):
            return Result(value="seen")
        assert isinstance(job.op, ModelCall)
        seen = any(each.role == "tool" for each in job.op.messages)
        text = "it is X" if seen or not left else left.pop(0)
        return Result(value=text, usage=Usage(completion=50))

    return simulate(
        Request(text="?"),
        planner=planner,
        hosts=[Host("host")],
        outcome=outcome,
        tools=[tool(look).spec, tool(side_effects=True)(write).spec],
        policies=policies,
    )


def look(at: str, far: int = 1) -> str:
    """Look somewhere."""
    return at


def write(n: int) -> int:
    """Write."""
    return n


def test_react_makes_only_the_calls_that_won() -> None:
    log: list[Job] = []
    report = asked(React(n=3, turn=CallConfig(temperature=0.7)), [C, A, A], log=log)
    assert report.result is not None and report.result.text == "it is X"
    calls = [(job.op.tool, job.op.args) for job in log if isinstance(job.op, ToolCall)]
    assert calls == [("look", {"at": "a"})], "what changes the world is called only if it wins"
    turns = [job.step.rpartition("/")[2] for job in log if isinstance(job.op, ModelCall)]
    assert turns[:3] == ["turn-1-1", "turn-1-2", "turn-1-3"] and turns[3].startswith("turn-2-")


def test_a_turn_that_wins_is_the_one_that_is_continued() -> None:
    log: list[Job] = []
    asked(React(n=3, turn=CallConfig(temperature=0.7)), [C, A, call("look", at="a", far=1)], log=log)
    (second, *_) = [job for job in log if "turn-2" in job.step]
    assert isinstance(second.op, ModelCall) and second.op.messages[-1].role == "tool"
    (result,) = [each for each in second.op.messages if each.role == "tool"]
    assert result.text == "seen" and result.name == "look"


def test_stop_rules_count_actions() -> None:
    log: list[Job] = []
    policies = (Waves(n=1), FirstFinish(votes=2))
    turns = [A, call("look", at="a", far=1), *[B] * 6]
    asked(React(n=8, turn=CallConfig(temperature=0.7)), turns, policies, log)
    first = [job for job in log if "turn-1" in job.step]
    assert len(first) == 2, "two samples that come to the same call are two votes"
    assert [job.op.args for job in log if isinstance(job.op, ToolCall)] == [{"at": "a"}]


def test_when_no_sample_can_be_read_the_first_is_sent_back() -> None:
    log: list[Job] = []
    report = asked(React(n=2, turn=CallConfig(temperature=0.7)), ["<tool_call>{", "<tool_call>{", A, A], log=log)
    assert report.result is not None and report.result.text == "it is X"
    repair = next(job for job in log if "turn-2" in job.step)
    assert isinstance(repair.op, ModelCall) and "has no end" in "".join(
        getattr(p, "text", "") for p in repair.op.prompt
    )


def test_it_stands_alone_in_a_plan() -> None:
    names = ("one", "two", "three")
    steps = tuple(Step(name=name, op=ModelCall(prompt=name)) for name in names)
    vote = Step(name="vote", op=Join(merge=ToolMajority(tools=(LOOK,))), needs=names)
    replies = [
        Reply(when="one", text=A),
        Reply(when="two", text=B),
        Reply(when="three", text=call("look", at="b", far=1)),
    ]
    with Orchestrator(workers=[Scripted(replies)], journal="off") as plait:
        answer = plait.run(plan=Plan(steps=(*steps, vote), output="vote"))
    assert answer.unwrap() == {"calls": [{"name": "look", "arguments": {"at": "b"}}]}
