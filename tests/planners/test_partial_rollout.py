"""Planner `partial-rollout`: where lines branch off, what they repeat, what is reported, and what is never called."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.events import Job
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Failure, Result, Signals, Token, Usage
from plait.core.tools.tool import ToolSpec
from plait_research.planners.partial_rollout import PartialRollout
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import SimReport, simulate

LOOK = ToolSpec(name="look")
TOOLS = (LOOK, ToolSpec(name="write", side_effects=True), ToolSpec(name="buy", approve=True))


def signals(entropy: float) -> Signals:
    return Signals(k=16, confidence=1.0, tail=1.0, bottom=1.0, lowest=1.0, entropy=entropy)


class Script:
    """A model that makes five calls and answers; how unsure it is of each turn is given."""

    def __init__(
        self, unsure: list[float] | None = None, fails: float = 0.0, writes: bool = False, ways: int = 10**6
    ) -> None:
        self.unsure = unsure or [0.1, 0.2, 2.0, 0.1, 1.0, 0.1]
        self.fails, self.writes, self.ways = fails, writes, ways
        self.turns: list[tuple[int, list[str]]] = []
        """Of each turn asked for: how many calls were made before it, and their arguments."""
        self.calls: list[str] = []
        self.reports = 0
        self.read: str = ""

    def __call__(self, job: Job, rng: Random) -> Result | Failure:
        if isinstance(job.op, ToolCall):
            self.calls.append(f"{job.op.tool} {json.dumps(dict(job.op.args))}")
            return Result(value="seen")
        assert isinstance(job.op, ModelCall)
        prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        if "Weigh them" in prompt:
            self.read = prompt
            return Result(value="42", usage=Usage(completion=5))
        if rng.random() < self.fails:
            return Failure(kind="WorkerError", message="no")
        done = [call.function.arguments for each in job.op.messages for call in each.tool_calls]
        if "Report on this" in prompt:
            self.reports += 1
            return Result(value=f"report {self.reports}", usage=Usage(completion=5))
        self.turns.append((len(done), done))
        sure = signals(self.unsure[len(done)]) if job.op.sampling.logprobs >= 2 else None
        if len(done) == 5:
            return Result(value="so 42", usage=Usage(completion=5), signals=sure)
        name = "write" if self.writes and rng.random() < 0.3 else "look"
        call = {"name": name, "arguments": {"n": len(done), "way": rng.randint(0, self.ways)}}
        return Result(value=f"<tool_call>{json.dumps(call)}</tool_call>", usage=Usage(completion=20), signals=sure)


def ask(script: Any, tools: Any = TOOLS, **options: Any) -> SimReport:
    host = Host("host", decode_rate=100.0)
    return simulate(Request(text="?"), planner=PartialRollout(**options), hosts=[host], outcome=script, tools=tools)


def tokens(text: str, unsure: float) -> tuple[Token, ...]:
    """Letters, each as likely as `unsure` says or one of fifteen others: the mark of a token is exp of its entropy."""
    rest = math.log((1 - unsure) / 15)
    top = (("x", math.log(unsure)), *(("y", rest) for _ in range(15)))
    return tuple(Token(text=each, logprob=top[0][1], top=top) for each in text)


@pytest.mark.parametrize(
    ("region", "spots"),
    [("calls", {2, 4}), ("thoughts", {1, 3}), ("mixed", {2, 3})],
    ids=["calls", "thoughts", "mixed"],
)
def test_the_part_of_a_turn_that_was_least_sure_says_where_to_branch(region: str, spots: set[int]) -> None:
    """Turns 2 and 4 are unsure of their calls, 1 and most of all 3 of their thoughts."""
    calls, thoughts = [0.9, 0.9, 0.1, 0.9, 0.2, 0.9], [0.9, 0.3, 0.9, 0.1, 0.9, 0.9]

    class Told(Script):
        def __call__(self, job: Job, rng: Random) -> Result | Failure:
            said = super().__call__(job, rng)
            if isinstance(job.op, ModelCall) and job.op.sampling.top_logprobs == 16 and isinstance(said, Result):
                before, (start, call, end) = len(self.turns[-1][1]), ("<tool_call>", said.text[11:-12], "</tool_call>")
                thought = ("<think>", "hm, this or that", "</think>")
                told = [*tokens(thought[0], 0.5), *tokens(thought[1], thoughts[before]), *tokens(thought[2], 0.5)]
                told += [*tokens(start, 0.5), *tokens(call, calls[before]), *tokens(end, 0.5)]
                said = said.model_copy(update={"value": "".join(thought) + said.text, "tokens": tuple(told)})
            return said

    script = Told()
    report = ask(script, criterion=region, fresh=0)
    assert report.result is not None and report.result.text == "42"
    firsts = [before for before, _ in script.turns]
    branches = {n for n in range(1, 6) if firsts.count(n) - firsts.count(n - 1) == 3}
    assert branches == spots


def test_lines_branch_off_where_the_model_was_least_sure() -> None:
    script = Script()
    report = ask(script)
    assert report.result is not None and report.result.text == "42"
    assert report.result.why == "8 reports of 8 lines" and script.reports == 8
    firsts = [before for before, _ in script.turns]
    # turns 3 and 5 are the least sure ones: three branches each from before them, one whole line beside the first
    assert [firsts.count(n) for n in range(6)] == [2, 2, 2 + 3, 2 + 3, 2 + 3 + 3, 2 + 3 + 3]


def test_a_branch_reads_what_was_there_and_repeats_no_call() -> None:
    script = Script()
    ask(script, warmup=1, fresh=0, positions=1, n=2)
    first = next(done for before, done in script.turns if before == 5)
    branched = [done for before, done in script.turns if before == 2]
    assert len(branched) == 3 and all(done == first[:2] for done in branched)
    assert len(script.calls) == len(set(script.calls)) == 5 + 2 * 3


@pytest.mark.parametrize("at", ["random", "uniform"])
def test_other_places_to_branch_need_no_probabilities(at: str) -> None:
    script = Script()
    report = ask(script, criterion=at)
    assert report.result is not None and script.reports == 8
    if at == "uniform":
        starts = [sum(before == n for before, _ in script.turns) for n in range(6)]
        assert starts == [2, 2, 5, 5, 8, 8]


def test_short_lines_are_followed_by_fresh_ones() -> None:
    def outcome(job: Job, rng: Random) -> Result:
        asked.append(job)
        return Result(value="so 42", usage=Usage(completion=5), signals=signals(1.0))

    asked: list[Job] = []
    report = ask(outcome)
    assert report.result is not None and report.result.why == "8 reports of 8 lines"


def test_lines_that_fail_are_left_out() -> None:
    script = Script(fails=0.05)
    report = ask(script)
    assert report.result is not None
    done, lines = report.result.why.split()[0], report.result.why.split()[3]
    assert int(done) == script.reports < int(lines) == 8
    assert script.read.count("Report ") == script.reports
    lost = ask(Script(fails=1.0))
    assert lost.failure is not None and "no" in lost.failure.message


@given(st.integers(0, 1000), st.sampled_from(["turn", "random", "uniform"]), st.integers(0, 3))
def test_nothing_that_changes_the_world_is_called(seed: int, at: str, positions: int) -> None:
    script = Script(writes=True)
    report = simulate(
        Request(text="?", seed=seed),
        planner=PartialRollout(criterion=at, positions=positions, n=2),  # type: ignore[arg-type]
        hosts=[Host("host", decode_rate=100.0)],
        outcome=script,
        tools=TOOLS,
        seed=seed,
    )
    assert report.result is not None and script.calls
    assert all(call.startswith("look ") for call in script.calls)


def test_what_makes_no_sense_is_refused_in_words() -> None:
    for tools, words in [((), "there is none"), (TOOLS[1:], "all its tools change the world")]:
        report = ask(Script(), tools)
        assert report.failure is not None and words in report.failure.message

    def silent(job: Job, rng: Random) -> Result | Failure:
        found = script(job, rng)
        return found.model_copy(update={"signals": None}) if isinstance(found, Result) else found

    script = Script()
    report = ask(silent)
    assert report.failure is not None and "give criterion=uniform" in report.failure.message


def test_lines_that_make_the_same_call_at_the_same_time_make_it_once() -> None:
    script = Script(ways=0)
    ask(script, warmup=8, positions=1, n=1)
    assert len(script.calls) == len(set(script.calls)) > 1
