"""Limits within a flow: scopes inside scopes, and chains of model calls that only the flow's own text connects."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget
from plait.core.events import Expanded, event_adapter
from plait.core.flow import Context, Flow
from plait.core.step_handles import StepFailed
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


def client(**options: Any) -> AsyncOrchestrator:
    slow = Reply(when="slow", text="answer: slow", delay=0.05)
    return AsyncOrchestrator(**({"workers": [Scripted([slow, Reply(text="answer: 4")])], "journal": "off"} | options))


async def run(planner: Any, **options: Any) -> Any:
    async with client() as orchestrator:
        return await asyncio.wait_for(orchestrator.run("What?", planner=planner, **options), 300)


@pytest.mark.parametrize("inner", [None, Budget(attempts=5)], ids=["no-limit", "a-wider-one"])
async def test_a_scope_limits_the_scopes_within_it_though_it_makes_no_step_itself(inner: Budget | None) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(Budget(attempts=2)) as outer, outer.scope() as between, between.scope(inner) as within:
            await within.think("a")
            await outer.think("b")
            with pytest.raises(StepFailed, match=r"group scope-1 of \w+:flow/: all 2 attempts"):
                await within.think("c")
        return await ctx.think("after it")

    assert (await run(plan)).status == "done"


async def lines(ctx: Context, turns: int) -> None:
    line = await ctx.think("1")
    for i in range(1, turns):
        line = await line.think(f"{i}")


async def texts(ctx: Context, turns: int) -> None:
    text = ""
    for i in range(turns):
        text = (await ctx.think(f"{i} {text}")).text


async def branches(ctx: Context, turns: int) -> None:
    """Each goes on when it likes; what another has waited for is none of its turns."""

    async def branch(word: str) -> str:
        await texts(ctx, turns - 1)
        return (await ctx.think(word)).text

    await ctx.gather(*(branch(word) for word in ("quick", "slow", "slow")), branch("quick"))


async def rounds(ctx: Context, turns: int) -> None:
    """What was gathered counts once, however many there were."""
    for i in range(turns - 1):
        await ctx.gather(*(ctx.think(f"round {i}") for _ in range(3)))

    async def last() -> str:
        return (await ctx.think("last")).text

    await ctx.gather(last(), last())


async def references(ctx: Context, turns: int) -> None:
    """A step that is waited for, and the text of another that refers to one."""
    first = ctx.think("1")
    for _ in range(turns - 2):
        first = ctx.think(["on from ", first])
    await first
    await ctx.think("last")


WAYS = [lines, texts, branches, rounds, references]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_turns_of_a_scope_are_those_that_the_flow_waits_for(way: Any) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        await texts(ctx, 3)
        async with ctx.scope(Budget(turns=3)) as inner:
            await way(inner, 3)
        async with ctx.scope(Budget(turns=3)) as inner:
            with pytest.raises(StepFailed, match=r"scope-2 .* would be turn 4 of at most 3; raise `turns`"):
                await way(inner, 4)
        return ctx.think("after it")

    answer = await run(plan)
    assert (answer.status, answer.answer) == ("done", "4"), answer.failure


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_turns_of_a_run_are_those_too(way: Any) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        await way(ctx, 3)
        return "answer: 4"

    assert (await run(plan, budget=Budget(turns=3))).status == "done"
    answer = await run(plan, budget=Budget(turns=2))
    assert answer.status == "partial" and "would be turn 3 of at most 2" in answer.failure.message


async def test_scopes_within_scopes_count_turns_each_from_its_own_beginning() -> None:
    said: list[str] = []

    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(Budget(turns=3)) as outer:
            await texts(outer, 1)
            for turns in (1, 2):
                async with outer.scope(Budget(turns=1)) as inner:
                    try:
                        await texts(inner, turns)
                    except StepFailed as error:
                        said.append(str(error))
            async with outer.scope(Budget(turns=9)) as inner:
                try:
                    await texts(inner, 1)
                except StepFailed as error:
                    said.append(str(error))
        return "answer: 4"

    assert (await run(plan, budget=Budget(turns=20))).status == "done"
    assert len(said) == 2 and "turn 2 of at most 1" in said[0]
    assert "turn 5 of at most 3" in said[1], "a refusal is a turn too: otherwise a flow could ask for ever"


async def test_a_program_has_its_turns_counted() -> None:
    async with client() as orchestrator:
        async with orchestrator.flow("What?", budget=Budget(turns=9)) as ctx:
            await texts(ctx, 2)
            async with ctx.scope(Budget(turns=2)) as inner:
                await branches(inner, 2)
                with pytest.raises(StepFailed, match="turn 3 of at most 2"):
                    await inner.think("a third")
            ctx.value = ctx.think("one more")
        assert ctx.result is not None and ctx.result.status == "done"
        async with orchestrator.flow("What?", budget=Budget(turns=2)) as ctx:
            await texts(ctx, 2)
            ctx.value = ctx.think("the third")
        assert ctx.result is not None and ctx.result.failure is not None and "turn 3" in ctx.result.failure.message


class Limited(Flow):
    """Two branches of three turns, within two scopes of which the outer one has no step of its own at first."""

    async def run(self, ctx: Context, question: str) -> Any:
        said: list[str] = []
        async with ctx.scope(Budget(turns=3)) as outer:
            for _ in range(2):
                async with outer.scope(Budget(turns=2)) as inner:
                    try:
                        await ctx.gather(texts(inner, 2), texts(inner, 3))
                    except StepFailed as error:
                        said.append(str(error).rpartition(" would be ")[2])
        return "answer: " + "; ".join(said)


async def test_a_run_with_turns_is_replayed_and_taken_up_after_any_event(tmp_path: Path) -> None:
    def over(path: Path) -> AsyncOrchestrator:
        return client(journal=path)

    whole = tmp_path / "whole.plait"
    async with over(whole) as orchestrator:
        wanted = (await orchestrator.run("What?", planner=Limited())).answer
    assert wanted == "turn 3 of at most 2; raise `turns`; turn 4 of at most 3; raise `turns`"
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(4, report.events, 2):
        left = tmp_path / f"{events}.plait"
        shutil.copy(whole, left)
        with contextlib.closing(sqlite3.connect(left)) as db:
            for table in ("events", "marks"):
                db.execute(f"DELETE FROM {table} WHERE seq > ?", (events,))
            db.commit()
        async with over(left) as orchestrator:
            (entry,) = entries(left)
            again = await asyncio.wait_for(orchestrator.resume(entry.run), 300)
        assert again.answer == wanted, f"killed after {events}"


def test_a_patch_without_limits_is_written_as_before() -> None:
    assert "waited" not in event_adapter.dump_python(Expanded(at=0.0, step="r:flow", attempt=0))
    said = Expanded(at=0.0, step="r:flow", attempt=0, waited={"a": {"": 2}})
    assert event_adapter.validate_json(event_adapter.dump_json(said)) == said


async def test_a_scope_of_so_many_steps_refuses_the_next_and_the_flow_goes_on() -> None:
    """What continues or reads a refused step is refused with it; steps of inner scopes count in the outer one."""
    said: list[str] = []

    async def tried(made: Any) -> None:
        with pytest.raises(StepFailed) as error:
            await made
        said.append(f"{error.value.failure.kind}: {error.value.failure.message}")

    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(Budget(steps=2)) as outer:
            async with outer.scope() as inner:
                await inner.think("a")
            await outer.think("b")
            refused = outer.think("c")
            after = refused.think("d")
            reads = ctx.think(["of it: ", refused])
            for made in (refused, after, reads):
                await tried(made)
        return await ctx.think("after it")

    answer = await run(plan)
    assert answer.status == "done", answer
    assert len(answer.report.steps) == 7, "the flow, two in the scope and three that were refused, one after it"
    reason = "BudgetExceeded: scope scope-1: a limit of 2 steps is used; raise `steps`"
    assert said[:2] == [reason, reason] and said[2].startswith("DependencyFailed") and said[2].endswith(reason)


@pytest.mark.parametrize("on_failure", ["best-effort", "any-end", "quorum"])
async def test_a_step_that_a_scope_refuses_is_a_failed_branch_of_what_tolerates(on_failure: Any) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(Budget(steps=3)) as inner:
            made = [inner.think(f"line {i}") for i in range(4)]
            return await ctx.join(made, on_failure=on_failure, **({"quorum": 2} if on_failure == "quorum" else {}))

    answer = await run(plan)
    assert answer.value[:2] == ["answer: 4"] * 2 and answer.value[3:] in ([], [None]), answer.failure
    states = {row.name: row.state for row in answer.report.steps}
    assert states["think-4"] == "failed" and states["think-1"] == "done"


@pytest.mark.parametrize("how", ["returned", "needed", "continued"])
async def test_a_refused_step_that_is_the_answer_says_which_budget_refused_it(how: str) -> None:
    async def plan(ctx: Context, question: str) -> Any:
        async with ctx.scope(Budget(steps=1)) as inner:
            await inner.think("first")
            second = inner.think("second")
        match how:
            case "returned":
                return second
            case "needed":
                return ctx.think(["of ", second])
            case _:
                return second.think("on")

    answer = await run(plan)
    assert answer.failure is not None and "a limit of 1 steps is used; raise `steps`" in answer.failure.message


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("read", [False, True])
async def test_an_answer_made_of_a_cut_call_is_partial_unless_its_flow_says_otherwise(fine: bool, read: bool) -> None:
    class Cut(Flow):
        cuts_are_fine = fine

        async def run(self, ctx: Flow.Context, question: str) -> Any:
            async with ctx.scope(Budget(tokens=3)) as inner:
                line = inner.think("long", max_tokens=8)
                if read:
                    await line
                else:
                    await ctx.think("another")
            return f"answer: {line.text}" if read else ctx.answer("4")

    worker = Scripted([Reply(text="one two three four five six")])
    async with client(workers=[worker]) as orchestrator:
        answer = await asyncio.wait_for(orchestrator.run("What?", planner=Cut()), 300)
    assert answer.status == ("partial" if read and not fine else "done"), answer.failure
    if read and not fine:
        assert answer.failure is not None and "raise `tokens`" in answer.failure.message
