"""`workflow:replan=each`: a plan that changes while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait import tool
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply
from plait_research.planners.workflow import MAX_CHANGES, Workflow
from tests.planners.test_llmcompiler import Prompts
from tests.planners.test_plan_changes import World
from tests.planners.test_workflow import call
from tests.runtime.driver.test_flows import cut

A, B = call("a", "find", what="a"), call("b", "wait", what="b")
C = call("c", "find", what="$b")
MARK = call("m", "mark")


def replies(*texts: Any, rest: Any = None) -> list[Reply]:
    """The model's texts in their order, then `rest` without an end."""
    made = [Reply(text=text if isinstance(text, str) else json.dumps(text), times=1) for text in texts]
    return [*made, Reply(text=json.dumps({} if rest is None else rest))]


async def run(*texts: Any, rest: Any = None, journal: Any = "off", **options: Any) -> tuple[Any, World, list[str]]:
    world, worker = World(), Prompts(*replies(*texts, rest=rest))
    async with AsyncOrchestrator(workers=[worker], tools=world.tools, journal=journal) as orchestrator:
        answer = await orchestrator.run("Which?", planner=Workflow(replan="each", **options))
    return answer, world, worker.prompts


async def test_a_step_is_dropped_and_another_added_while_the_plan_runs():
    change = {"replace": {"c": [], "m": MARK, "d": call("d", "find", what="d, then {$b}")}, "answer": ["$a", "$d"]}
    answer, world, prompts = await run({"steps": [A, B, C], "answer": ["$a", "$c"]}, change)
    assert answer.value == ["<a>", "<d, then <b>>"]
    assert sorted(world.calls) == ["a", "b", "d, then <b>"]
    assert "c" not in [row.name for row in answer.trace]
    assert "New results:\na: <a>\n\nSteps that have not begun: c\n" in prompts[1]


async def test_a_step_is_rewired_with_those_that_need_it():
    plan = {"steps": [A, B, C, call("d", "find", what="$c")], "answer": ["$a", "$d"]}
    answer, world, _ = await run(plan, {"replace": {"c": call("c", "find", what="c of {$a}")}})
    assert answer.value == ["<a>", "<<c of <a>>>"]
    assert "<b>" not in world.calls
    assert [row.state for row in answer.trace if row.name == "b"] == ["cancelled"]


async def test_what_nothing_reads_any_more_is_cancelled_while_it_runs():
    answer, world, _ = await run({"steps": [A, B, C], "answer": ["$a", "$c"]}, {"replace": {"c": []}, "answer": "$a"})
    assert answer.value == "<a>"
    assert sorted(world.calls) == ["a", "b"]
    (stopped,) = (row for row in answer.trace if row.name == "b")
    assert stopped.state == "cancelled"


async def test_a_failed_step_is_replaced_before_the_run_fails():
    plan = {"steps": [call("a", "broken"), call("c", "find", what="$a")], "answer": "$c"}
    change = {"replace": {"again": call("again", "find", what="x"), "c": call("c", "find", what="$again")}}
    world = World()

    @tool
    def broken() -> str:
        """Fail."""
        raise ValueError("no luck")

    worker = Prompts(*replies(plan, change))
    async with AsyncOrchestrator(workers=[worker], tools=[*world.tools, broken], journal="off") as orchestrator:
        answer = await orchestrator.run("Which?", planner=Workflow(replan="each"))
    assert answer.value == "<<x>>"
    assert "a: failed: " in worker.prompts[1]
    assert "no luck" in worker.prompts[1]


@pytest.mark.parametrize("reply", [{}, "Fine as it is.", {"replace": []}, {"steps": [A]}, {"replace": {}}])
async def test_a_plan_that_needs_no_change_runs_as_written(reply: Any):
    plan = {"steps": [A, call("c", "find", what="$a")], "answer": "$c"}
    answer, world, _ = await run(plan, reply, reply)
    assert answer.value == "<<a>>"
    assert world.calls == ["a", "<a>"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"replace": {"a": call("a", "find", what="again")}}, "a: begun already"),
        ({"replace": {"b": []}}, "b: begun already"),
        ({"replace": {"c": call("c", "nonsense")}}, "there is no tool 'nonsense'"),
        ({"replace": {"c": call("c", "find", what="$zz")}}, "$zz refers to nothing"),
        ({"replace": {"c": call("c", "find", what="$d"), "d": call("d", "find", what="$c")}}, "wait for one another"),
        ({"answer": "$zz"}, "$zz refers to nothing"),
    ],
)
async def test_a_change_that_cannot_be_made_is_reported_and_the_plan_stays(change: Any, reason: str):
    good = {"replace": {"m": MARK, "d": call("d", "find", what="d")}, "answer": ["$c", "$d"]}
    plan = {"steps": [A, call("e", "find", what="$a"), B, C], "answer": ["$c", "$e"]}
    answer, _, prompts = await run(plan, change, good)
    assert answer.value == ["<<b>>", "<d>"]
    assert reason in prompts[2].partition("Your last change was not made: ")[2]
    (label,) = (row for row in answer.trace if row.label == "change not made")
    assert label.state == "done"


async def test_a_change_that_cannot_be_made_after_the_last_result_is_written_once_more():
    plan = {"steps": [A], "answer": "$a"}
    late = {"replace": {"a": call("a", "find", what="again")}}
    again = {"replace": {"a2": call("a2", "find", what="again")}, "answer": "$a2"}
    answer, _, prompts = await run(plan, late, again)
    assert answer.value == "<again>"
    assert "New results:\nnone\n" in prompts[2]
    answer, _, prompts = await run(plan, rest=late)
    assert answer.value == "<a>"
    assert len(prompts) == 3


async def test_a_model_that_always_adds_steps_comes_to_an_end():
    plan = {"steps": [A, call("c", "find", what="$a")], "answer": "$c"}
    changes = [{"replace": {f"x{n}": call(f"x{n}", "find", what="x")}, "answer": [f"$x{n}"]} for n in range(50)]
    answer, world, prompts = await run(plan, *changes)
    assert answer.value == ["<x>"]
    assert len(prompts) == 1 + MAX_CHANGES
    assert len(world.calls) <= 2 + MAX_CHANGES


async def test_changes_are_replayed_and_resumed(tmp_path: Path):
    plan = {"steps": [A, B, C], "answer": ["$a", "$c"]}
    change = {"replace": {"c": [], "m": MARK, "d": call("d", "find", what="{$b}d")}, "answer": ["$a", "$d"]}
    whole = tmp_path / "whole.plait"
    answer, *_ = await run(plan, change, journal=whole)
    assert answer.value == ["<a>", "<<b>d>"]
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(6, report.events, 5):
        left = tmp_path / f"{events}.plait"
        cut(whole, left, events)
        world = World()
        worker = Prompts(Reply(when="New results:\na: <a>\n\nSteps", text=json.dumps(change), times=1),
                         Reply(when="New results", text="{}"), Reply(text=json.dumps(plan)))  # fmt: skip
        async with AsyncOrchestrator(workers=[worker], tools=world.tools, journal=left) as orchestrator:
            await world.tools[2].fn()
            (entry,) = entries(left)
            again = await orchestrator.resume(entry.run)
        # `b` ends at once when it is called again, so `c` may have begun before the change.
        assert again.status == "done", f"killed after {events}"
        assert again.value in (["<a>", "<<b>d>"], ["<a>", "<<b>>"])
