"""Planners written as coroutines: what they make, what wakes them, how they end, and how they are taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, tool
from plait.apps.common.graph import text
from plait.core.errors import ConfigError, FlowError
from plait.core.flow import Context, Flow
from plait.core.interfaces import Planner, PlanningContext
from plait.core.ops import ModelCall
from plait.core.plan import Plan, Step
from plait.core.planning import OnResult, call_model, pass_through
from plait.core.request import Request
from plait.core.step_handles import StepFailed
from plait.policies.merge.votes import Majority
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.simulator import simulate

REPLIES = [
    Reply(when="slow", text="answer: slow", delay=30.0),
    Reply(when="bad", finish="error"),
    Reply(text="answer: 4"),
]


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def long(text: str) -> float:
    """Score a text."""
    return float(len(text))


def client(**options: Any) -> AsyncOrchestrator:
    settings = {"workers": [Scripted(REPLIES)], "tools": [add, long], "journal": "off"} | options
    return AsyncOrchestrator(**settings)


async def run(planner: Any, **options: Any) -> Any:
    async with client() as orchestrator:
        return await orchestrator.run("What?", planner=planner, **options)


class Drafts(Flow):
    """Drafts and a vote."""

    n: int = 3

    async def run(self, ctx: Context, question: str) -> Any:
        drafts = await ctx.gather(*(ctx.think(question, temperature=0.8) for _ in range(self.n)))
        return await ctx.join(drafts, merge=Majority())


async def test_a_flow_makes_steps_like_any_planner() -> None:
    answer = await run(Drafts(n=3))
    assert (answer.status, answer.answer) == ("done", "4")
    assert [row.name for row in answer.trace] == ["flow", "think-1", "think-2", "think-3", "join-1"]
    assert answer.why == "3 of 3 votes, margin 3"


async def test_handles_are_given_on_before_they_have_ended() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        total = ctx.call(add, a=ctx.call("add", a=1, b=2), b=4)
        return ctx.think(["How much is ", total, "?"])

    answer = await run(plan)
    assert answer.answer == "4" and len(answer.trace) == 4


async def test_a_line_goes_on_and_forks() -> None:
    seen: dict[str, str] = {}

    async def plan(ctx: Context, question: str) -> Any:
        line = await ctx.think(question, stop="answer:")
        seen["first"] = line.text
        ends = await ctx.gather(*line.fork(2, " so "))
        seen["line"] = ends[0].line
        return ends[1]

    assert (await run(plan)).status == "done"
    assert seen["line"] == seen["first"] + " so " + "answer: 4"


async def test_scores_and_arithmetic_between_steps() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        lines = await ctx.gather(ctx.think(question), ctx.think("b"))
        scores = await ctx.gather(*(ctx.score(line, long) for line in lines))
        assert scores == [9.0, 9.0]
        return f"answer: {await ctx.call(add, a=3, b=4)}"

    answer = await run(plan)
    assert (answer.answer, answer.value) == ("7", "answer: 7")


async def test_what_a_flow_waited_for_is_on_the_critical_path_of_what_it_makes_then() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        await ctx.gather(ctx.think("a"), ctx.think("b"))  # of two tokens each
        await ctx.think("c")
        return ctx.answer("4")

    answer = await run(plan)
    assert (answer.total_tokens, answer.critical_path_tokens) == (6, 4)


async def test_first_gives_up_the_losers_in_the_engine() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        return await ctx.first(
            [ctx.think("slow"), ctx.think("bad"), ctx.think("good")], ok=lambda line: bool(line.text)
        )

    answer = await asyncio.wait_for(run(plan), 300)
    states = {row.name: row.state for row in answer.trace}
    assert answer.answer == "4"
    assert states["think-1"] == "cancelled" and states["think-2"] == "failed" and states["think-3"] == "done"


async def test_a_branch_that_loses_takes_its_own_steps_with_it() -> None:
    async def slow(ctx: Context) -> str:
        await ctx.think("x")
        await ctx.gather(ctx.think("slow"), ctx.think("slow"))
        return "slow"

    async def quick(ctx: Context) -> str:
        await ctx.gather(*(ctx.think("y") for _ in range(3)))
        await ctx.think("z")
        return "quick"

    async def plan(ctx: Context, question: str) -> Any:
        return await ctx.race([slow(ctx), quick(ctx)])

    answer = await asyncio.wait_for(run(plan), 300)
    assert answer.value == "quick"
    assert [row.state for row in answer.trace].count("cancelled") == 2


async def test_a_step_without_a_value_raises_where_it_is_awaited() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        with pytest.raises(StepFailed, match="EngineError"):
            await ctx.think("bad")
        both = await ctx.gather(ctx.think("bad"), ctx.think("good"), return_exceptions=True)
        assert isinstance(both[0], StepFailed)
        return both[1]

    assert (await run(plan)).answer == "4"


async def test_what_is_not_caught_fails_the_run_with_its_words() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        return await ctx.think("bad")

    answer = await run(plan)
    assert answer.status == "failed" and answer.failure.kind == "EngineError"
    assert answer.failure.message.startswith("think-1: ")


async def test_a_scope_shares_a_budget_and_ends_what_it_began() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(budget=Budget(attempts=2)) as inner:
            await inner.think("a")
            await inner.think("b")
            with pytest.raises(StepFailed, match="attempts"):
                await inner.think("c")
        async with ctx.scope() as inner:
            inner.think("slow")
            line = await inner.think("d")
        return await line.think("outside")

    answer = await asyncio.wait_for(run(plan), 300)
    assert answer.status == "done"
    assert {row.name: row.state for row in answer.trace}["think-4"] == "cancelled"


async def test_a_person_is_asked() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        return f"answer: {await ctx.ask('Which?', ['tea', 'milk'])}"

    async with client(on_ask=lambda question: question.choices[0]) as orchestrator:
        assert (await orchestrator.run("What?", planner=plan)).answer == "tea"


async def network(ctx: Context, question: str) -> Any:
    await asyncio.sleep(0.01)


async def raises(ctx: Context, question: str) -> Any:
    raise ValueError("out of ideas")


async def endless(ctx: Context, question: str) -> Any:
    while True:
        await ctx.gather()


async def floods(ctx: Context, question: str) -> Any:
    while True:
        ctx.think(question)


async def itself(ctx: Context, question: str) -> Any:
    later: list[Any] = []

    async def one() -> None:
        await later[1]

    async def two() -> None:
        await later[0]

    later += [ctx.gather(one()), ctx.gather(two())]
    await later[0]


async def badly(ctx: Context, question: str) -> Any:
    try:
        await ctx.think(question)
        raise ValueError("first")
    finally:
        raise KeyError("in the finally")


def ordinary(ctx: Context, question: str) -> Any:
    return "no coroutine"


@pytest.mark.parametrize(
    ("planner", "says"),
    [
        (network, "which is no step: make it a tool"),
        (raises, "raised ValueError: out of ideas"),
        (endless, "it seems to have no end"),
        (floods, "20,000 steps without waiting"),
        (itself, "it waits for ever"),
        (badly, "raised KeyError: 'in the finally'"),
    ],
)
async def test_a_flow_that_does_what_it_cannot_is_told_so_and_harms_nobody(planner: Any, says: str) -> None:
    async with client() as orchestrator:
        other = await orchestrator.submit("What?", planner=Drafts())
        answer = await asyncio.wait_for(orchestrator.run("What?", planner=planner), 300)
        assert answer.status == "failed"
        assert says in answer.failure.message
        assert (await other).status == "done"


async def test_a_flow_that_minds_being_given_up_is_told_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        try:
            await ctx.think("slow")
        finally:
            await ctx.think("one more")

    async with client() as orchestrator:
        handle = await orchestrator.submit("What?", planner=plan)
        await asyncio.sleep(0.05)
        handle.cancel()
        assert (await handle).status == "cancelled"
        assert (await orchestrator.run("What?", planner=Drafts())).status == "done"
    assert "after it had ended" in caplog.text


async def test_without_end_it_meets_its_budget() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        line = await ctx.think(question)
        while True:
            line = await line.think("more")

    answer = await run(plan, budget=Budget(steps=20))
    assert answer.failure.kind == "BudgetExceeded" and len(answer.trace) <= 20


def test_the_simulator_runs_flows() -> None:
    report = simulate(Request(text="What?"), planner=Drafts(n=8))
    assert report.status == "done" and report.steps == 10


def test_the_first_patch_is_what_a_plan_shows() -> None:
    plan = client().plan("What?", planner=Drafts(n=2))
    assert [step.name for step in plan.steps] == ["think-1", "think-2"]
    assert text(plan).splitlines()[-1].startswith("2 steps, which a flow makes first")


# -- journals ----------------------------------------------------------------------------------------------------------


CHANGED = [False]


class Rounds(Flow):
    """Steps in rounds that end in another order than they began."""

    async def branch(self, ctx: Context, i: int) -> str:
        line = await ctx.think(f"branch {i}", temperature=1.0)
        if ctx.random.random() < 0.5:
            line = await line.think("more")
        if CHANGED[0]:
            await ctx.call(add, a=i, b=1)
        await ctx.gather(line.think("x"), ctx.call(add, a=i, b=2))
        return f"{i}{ctx.now() >= 0}"

    async def run(self, ctx: Context, question: str) -> Any:
        await ctx.first([ctx.think("slow"), ctx.think("quick")])
        said = await ctx.gather(*(self.branch(ctx, i) for i in range(3)))
        return "answer: " + ",".join(said)


def resumer(path: Path) -> AsyncOrchestrator:
    return AsyncOrchestrator(workers=[Scripted(REPLIES)], tools=[add, long], journal=path)


async def recorded(path: Path) -> Any:
    async with resumer(path) as orchestrator:
        return await orchestrator.run("What?", planner=Rounds())


def cut(path: Path, left: Path, events: int) -> None:
    """Leave a journal as a process would that was killed after so many events."""
    import sqlite3

    shutil.copy(path, left)
    with contextlib.closing(sqlite3.connect(left)) as db:
        for table in ("events", "marks"):
            db.execute(f"DELETE FROM {table} WHERE seq > ?", (events,))
        db.commit()


async def test_a_run_is_replayed_and_taken_up_after_any_event(tmp_path: Path) -> None:
    whole = await recorded(tmp_path / "whole.plait")
    assert whole.status == "done"
    report = replay(tmp_path / "whole.plait", Plugins())
    assert report.divergence is None
    for events in range(4, report.events, 3):
        left = tmp_path / f"{events}.plait"
        cut(tmp_path / "whole.plait", left, events)
        async with resumer(left) as orchestrator:
            (entry,) = entries(left)
            again = await asyncio.wait_for(orchestrator.resume(entry.run), 300)
        assert (again.status, again.answer) == ("done", whole.answer), f"killed after {events}"
        assert sorted(row.name for row in again.trace) == sorted(row.name for row in whole.trace)


async def test_a_planner_that_has_changed_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await recorded(tmp_path / "whole.plait")
    events = replay(tmp_path / "whole.plait", Plugins()).events
    cut(tmp_path / "whole.plait", tmp_path / "left.plait", events - 1)
    monkeypatch.setattr(f"{__name__}.CHANGED", [True])
    async with resumer(tmp_path / "left.plait") as orchestrator:
        (entry,) = entries(tmp_path / "left.plait")
        with pytest.raises(ConfigError, match=r"planner has changed since.*it had made .*think-\d.*now makes .*call-"):
            await orchestrator.resume(entry.run)


class Rewritten(Planner):
    """Reads a step when its journal is written, and is a flow when the run is taken up."""

    def start(self, brief: PlanningContext) -> Plan:
        return Plan(steps=(Step(name="a", op=ModelCall(prompt="a"), expands=True),), output="a")

    def reader(self, step: Step, brief: PlanningContext) -> Any:
        return OnResult(lambda result: Plan(steps=(Step(name="b", op=ModelCall(prompt="b")),), output="b"))


async def test_a_run_of_a_planner_that_became_a_flow_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with resumer(tmp_path / "whole.plait") as orchestrator:
        assert (await orchestrator.run("What?", planner=Rewritten())).status == "done"
    cut(tmp_path / "whole.plait", tmp_path / "left.plait", 4)
    monkeypatch.setattr(f"{__name__}.Rewritten", Rounds)
    async with resumer(tmp_path / "left.plait") as orchestrator:
        (entry,) = entries(tmp_path / "left.plait")
        with pytest.raises(ConfigError, match=r"Rewritten' was no flow when plait \S+ began it, and is one now; start"):
            await orchestrator.resume(entry.run)
        assert (await orchestrator.run("What?", planner=Drafts())).status == "done"


async def test_a_flow_takes_steps_that_helpers_of_planners_make() -> None:
    async def plan(ctx: Context, question: str) -> Any:
        line = await ctx.step(call_model(ctx.brief, "mine", "own", question, max_tokens=9, temperature=0.5))
        with pytest.raises(FlowError, match="no model call"):
            ctx.step(pass_through("again", "own"))
        return line

    answer = await run(plan)
    assert answer.answer == "4" and [row.name for row in answer.trace] == ["flow", "own"]


# -- a program's own flow ----------------------------------------------------------------------------------------------


async def test_a_program_makes_steps_by_itself_and_may_wait_for_what_it_likes() -> None:
    async def branch(ctx: Context, i: int) -> str:
        line = await ctx.think(f"branch {i}")
        await asyncio.sleep(0.01)
        return (await line.think("more")).line

    async with client() as orchestrator:
        async with orchestrator.flow("What?", budget=Budget(tokens=2000)) as ctx:
            said = await ctx.gather(branch(ctx, 1), branch(ctx, 2))
            assert said == ["answer: 4moreanswer: 4"] * 2
            assert await ctx.first([ctx.think("slow"), ctx.think("quick")]) is not None
            async with ctx.scope(budget=Budget(attempts=1)) as inner:
                await inner.call(add, a=1, b=2)
                with pytest.raises(StepFailed, match="attempts"):
                    await inner.call(add, a=1, b=2)
            ctx.value = ctx.join([ctx.think("a"), ctx.think("b")], merge="majority")
        assert ctx.result is not None
        assert (ctx.result.status, ctx.result.answer) == ("done", "4")
        names = [row.name for row in ctx.result.trace]
        assert "1.think-1" in names and "2.think-2" in names


async def test_a_program_that_raises_gives_its_run_up() -> None:
    async with client() as orchestrator:
        with pytest.raises(KeyError):  # noqa: PT012
            async with orchestrator.flow() as ctx:
                ctx.think("slow")
                await ctx.think("a")
                raise KeyError("mine")
        assert ctx.result is not None and ctx.result.status == "cancelled"


async def test_a_program_whose_run_is_over_is_told_so() -> None:
    async with client() as orchestrator, orchestrator.flow(budget=Budget(seconds=0.5)) as ctx:
        with pytest.raises(StepFailed, match="seconds"):
            await ctx.think("slow")
        with pytest.raises(FlowError, match="after it had ended"):
            ctx.think("more")


async def test_a_program_s_run_cannot_be_taken_up(tmp_path: Path) -> None:
    async with resumer(tmp_path / "whole.plait") as orchestrator:
        async with orchestrator.flow() as ctx:
            ctx.value = (await ctx.think("a")).text
    events = replay(tmp_path / "whole.plait", Plugins()).events
    cut(tmp_path / "whole.plait", tmp_path / "left.plait", events - 1)
    async with resumer(tmp_path / "left.plait") as orchestrator:
        (entry,) = entries(tmp_path / "left.plait")
        with pytest.raises(ConfigError, match="the program that drove this run"):
            await orchestrator.resume(entry.run)


# -- what does not come to an end --------------------------------------------------------------------------------------


def test_a_flow_that_computes_for_ever_fails_alone() -> None:
    child = [sys.executable, str(Path(__file__).with_name("stuck_child.py"))]
    done = subprocess.run(child, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    told = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert list(told) == ["Spins", "Stubborn", "Asks", "Sleeps", "AtOnce", "AtTheEnd"]
    for name, said in told.items():
        assert said["others"] == ["done", "done"], name
        if name == "AtTheEnd":
            assert said["status"] == "cancelled"
        else:
            assert said["status"] == "failed"
            assert f"{name}: it ran for 0.5 s without waiting for a step, at line " in said["why"]
            assert "of stuck_child.py in" in said["why"]


@pytest.mark.parametrize("how", ["scope", "first", "cancel"])
@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_flow_gives_up_in_the_turn_in_which_it_returns_is_given_up(how: str, waits: bool) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        a = b = ctx.think("quick")
        if how == "scope":
            async with ctx.scope() as inner:
                b = inner.think("long")
                await a
        else:
            b = ctx.think("long")
            await ctx.first([a, b]) if how == "first" else await a
            ctx.cancel(b)
        joined = ctx.join([a, b], on_failure="best-effort")
        if waits:
            await joined
        return joined

    long = Reply(when="long", text="word " * 40, tokens_per_second=20.0)
    async with AsyncOrchestrator(workers=[Scripted([long, Reply(text="answer: 4")])], journal="off") as plait:
        answer = await asyncio.wait_for(plait.run("What?", planner=plan), 300)
    assert {row.name: row.state for row in answer.report.steps}["think-2"] == "cancelled"
    assert answer.value == ["answer: 4", None] and answer.total_tokens < 20
