"""Planner `speculate`: the target's answer, sooner; nothing that changes the world before the target has said so."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from experiments.speculate.run import TARGET, faster, planner, ran
from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import ToolSpec
from plait_research.planners.speculate import LearnedWindow, Speculate, best_window
from plait_research.simulation.latency import Host, LatencyModel
from plait_research.simulation.simulator import SimReport, simulate

TOOLS = (
    ToolSpec(name="look", parameters={"type": "object", "properties": {"n": {"type": "integer"}}}),
    ToolSpec(name="write", side_effects=True),
    ToolSpec(name="send", side_effects=True, idempotent=True),
    ToolSpec(name="buy", approve=True),
)
FREE = {"look"}


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "k", "asked"), [(0.5, 2, 1.33), (0.8, 4, 1.35), (0.9, 8, 1.24)])
def test_it_is_as_fast_as_the_closed_form_says(q: float, k: int, asked: float) -> None:
    steps = 300
    found = ran(planner(k, steps=steps), q, 3, steps)
    assert steps * TARGET / found.seconds == pytest.approx(faster(q, k), rel=0.02)
    assert found.asked / steps == pytest.approx(asked, rel=0.03)
    assert found.answer.split("\n") == [f"step {n}" for n in range(steps)]


def test_the_target_alone_takes_its_own_time() -> None:
    found = ran(planner(1, steps=30), 0.5, 0, 30)
    assert (found.seconds, found.asked, found.tokens) == (pytest.approx(30 * TARGET), 30, 3000)


def test_the_window_is_the_best_of_all() -> None:
    """Against a simulation of rounds, by hand."""

    def cost(q: float, k: int, a: float, t: float, price: float) -> float:
        rng, seconds, tokens, steps = Random(1), 0.0, 0.0, 0
        for _ in range(4000):
            m = next((i for i in range(1, k) if rng.random() > q), k)
            end = (m - 1) * a + t
            tokens += 100 * sum(i * a < end for i in range(k)) + 100 * sum(i * a < end for i in range(k - 1))
            seconds, steps = seconds + end, steps + m
        return seconds / steps + price * (tokens / steps - 100)

    for q in (0.2, 0.5, 0.9):
        for price in (0.0, 0.003, 0.02):
            costs = {k: cost(q, k, 1.0, 4.0, price) for k in range(1, 9)}
            chosen = best_window(q, 1.0, 4.0, 100, 100, price, 8)
            assert costs[chosen] == pytest.approx(min(costs.values()), rel=0.04), (q, price)
    assert best_window(0.9, 1.0, 4.0, 100, 100, 0.0, 8) == 8
    assert best_window(0.0, 1.0, 4.0, 100, 100, 0.0, 8) == 1
    assert best_window(0.9, 1.0, 4.0, 100, 100, 1.0, 8) == 1


def test_a_draft_that_began_badly_is_tried_again() -> None:
    found = ran(planner(8, 0.01, steps=150), 0.9, 0, 150)
    assert 150 * TARGET / found.seconds > 1.7


def test_tokens_that_cost_more_are_spent_less() -> None:
    found = [ran(planner(8, price, steps=60), 0.5, 0, 60) for price in (0.0, 0.002, 1.0)]
    assert [each.answer for each in found] == [found[0].answer] * 3
    assert found[0].tokens > found[1].tokens > found[2].tokens
    assert found[0].seconds < found[2].seconds


def test_the_learnt_window_is_the_expectile_of_what_was_kept() -> None:
    """Without other facts the regression comes to the expectile: tau E[(y - e)+] = (1 - tau) E[(e - y)+]."""
    for tau in (0.2, 0.5, 0.9):
        learned, rng, ends = LearnedWindow(tau), Random(2), list[float]()
        for number in range(20_000):
            learned.features = [10.0, 0.0, 0.0]
            learned.weights[1:] = [0.0, 0.0]
            learned.learn(rng.choice([1, 2, 6]), 8)
            if number > 1_000:
                ends.append(10.0 * learned.weights[0])
        e = sum(ends) / len(ends)
        over, under = (sum(max(0.0, sign * (y - e)) for y in (1, 2, 6)) for sign in (1, -1))
        assert tau * over == pytest.approx((1 - tau) * under, rel=0.25), tau


def test_a_higher_expectile_is_sooner_and_costs_more() -> None:
    fixed = planner(8, steps=150)
    outcomes = [ran(fixed.model_copy(update={"expectile": tau}), 0.7, 0, 150) for tau in (0.1, 0.5, 0.95)]
    assert {each.answer for each in outcomes} == {ran(fixed, 0.7, 0, 150).answer}
    assert outcomes[0].tokens < outcomes[1].tokens < outcomes[2].tokens <= ran(fixed, 0.7, 0, 150).tokens
    assert outcomes[0].seconds > outcomes[2].seconds


def test_the_window_is_learnt_from_how_often_they_agree() -> None:
    tokens = [ran(planner(8, steps=150).model_copy(update={"expectile": 0.5}), q, 0, 150).tokens for q in (0.2, 0.95)]
    fixed = [ran(planner(8, steps=150), q, 0, 150).tokens for q in (0.2, 0.95)]
    assert tokens[0] / fixed[0] < 0.7 < tokens[1] / fixed[1]


# -- what comes out ----------------------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass
class World:
    """Two models whose turns depend on all that they have read, and tools, some of which change what is there."""

    seed: int
    agree: float
    log: list[Job] = field(default_factory=list[Job])
    done: list[str] = field(default_factory=list[str])
    """Calls that cannot be undone."""
    looked: list[str] = field(default_factory=list[str])

    def __call__(self, job: Job, _: Random) -> Result | Failure:
        self.log.append(job)
        if isinstance(job.op, ToolCall):
            said = f"{job.op.tool} {json.dumps(dict(job.op.args), sort_keys=True)}"
            if job.op.tool not in FREE:
                self.done.append(said)
                return Result(value=len(self.done))
            self.looked.append(said)
            return Result(value=f"{said} after {len(self.done)}")
        assert isinstance(job.op, ModelCall)
        read = json.dumps([each.model_dump(mode="json") for each in job.op.messages], sort_keys=True)
        read += "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        rng = Random(f"{self.seed} {read}")
        turn = self._turn(rng)
        if job.op.model == "small" and Random(f"small {self.seed} {read}").random() > self.agree:
            turn = self._turn(rng)
        thought = f"I, {job.op.model}, think. " if rng.random() < 0.5 else ""
        return Result(value=thought + turn, usage=Usage(completion=40))

    @staticmethod
    def _turn(rng: Random) -> str:
        kind = rng.random()
        if kind < 0.15:
            return f"The answer is {rng.randint(1, 9)}."
        if kind < 0.2:
            return "<tool_call>{look</tool_call>"
        names = rng.choices(["look", "write", "send", "buy", "nothing"], [12, 1, 1, 1, 1], k=rng.randint(1, 2))
        return "\n".join(call(name, n=rng.randint(1, 3)) for name in names)


def ask(world: World, window: int, **options: Any) -> SimReport:
    fast = Host("small", decode_rate=200.0, models=("small",))
    slow = Host("large", decode_rate=20.0, models=("large",))
    return simulate(
        Request(text="What is there?"),
        planner=Speculate(draft=CallConfig(model="small"), target=CallConfig(model="large"), depth=window, **options),
        hosts=[fast, slow, Host("tools", serves=("call",))],
        latency=LatencyModel(call=1.0),
        outcome=world,
        tools=TOOLS,
    )


def trace(world: World) -> list[Any]:
    """Return the conversation that the target's last turn read."""
    last = max(
        (each.op for each in world.log if isinstance(each.op, ModelCall) and each.op.model == "large"), key=_length
    )
    return [each.model_dump(mode="json") for each in last.messages]


def _length(op: ModelCall) -> int:
    return len(op.messages)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.integers(2, 6), st.sampled_from([0.0, 0.004]))
def test_nothing_is_different_but_the_time(seed: int, agree: float, window: int, price: float) -> None:
    """Calls that cannot be undone are those of the target alone, in its order; so is the answer."""
    alone, both = World(seed, agree), World(seed, agree)
    one = ask(alone, 1, rounds=8)
    two = ask(both, window, rounds=8, price=price)
    assert both.done == alone.done
    assert (one.result and one.result.value) == (two.result and two.result.value)
    assert set(alone.looked) <= set(both.looked)
    # a call of a draft's that cannot be undone is a step only if the target made it too
    made = [each.op.tool for each in both.log if isinstance(each.op, ToolCall) and each.op.tool not in FREE]
    assert len(made) == len(both.done)


def test_the_transcript_is_that_of_the_target_alone() -> None:
    for seed in range(30):
        alone, both = World(seed, 0.7), World(seed, 0.7)
        one, two = ask(alone, 1, rounds=8), ask(both, 4, rounds=8)
        assert one.result is not None and two.result is not None
        mine = [json.dumps(each) for each in trace(alone)]
        theirs = [
            [json.dumps(each.model_dump(mode="json")) for each in job.op.messages]
            for job in both.log
            if isinstance(job.op, ModelCall) and job.op.model == "large"
        ]
        assert mine in theirs


def test_the_draft_stops_where_the_world_would_change() -> None:
    def outcome(job: Job, _: Random) -> Result:
        log.append(job)
        if isinstance(job.op, ToolCall):
            return Result(value="done")
        assert isinstance(job.op, ModelCall)
        seen = sum(each.role == "tool" for each in job.op.messages)
        text = [call("look", n=1), call("write", n=1), "all done"][seen]
        return Result(value=text, usage=Usage(completion=40))

    log: list[Job] = []
    ask(outcome, 8)  # type: ignore[arg-type]
    drafts = [each for each in log if isinstance(each.op, ModelCall) and each.op.model == "small"]
    assert len(drafts) == 3, "one for each turn: look and write, then the answer"
    assert [each.op.tool for each in log if isinstance(each.op, ToolCall)] == ["look", "write"]


def test_a_draft_that_fails_is_done_without() -> None:
    def outcome(job: Job, _: Random) -> Result | Failure:
        if isinstance(job.op, ModelCall) and job.op.model == "small":
            return Failure(kind="WorkerError", message="no")
        return world(job, _)

    world, alone = World(5, 1.0), World(5, 1.0)
    two = ask(outcome, 4, rounds=8)  # type: ignore[arg-type]
    one = ask(alone, 1, rounds=8)
    assert two.result is not None and one.result is not None and two.result.value == one.result.value


def test_a_target_that_fails_fails_the_run() -> None:
    def outcome(job: Job, _: Random) -> Result | Failure:
        large = isinstance(job.op, ModelCall) and job.op.model == "large"
        return Failure(kind="WorkerError", message="no") if large else world(job, _)

    world = World(5, 1.0)
    report = ask(outcome, 4)  # type: ignore[arg-type]
    assert report.failure is not None and "no" in report.failure.message
