"""`llmcompiler:replan=each`: a plan that changes while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import tool
from plait.core.errors import PlannerError, PluginError
from plait.planners.tools.llmcompiler import LLMCompiler
from plait.planners.tools.llmcompiler.options import MAX_REVISIONS
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply
from tests.planners.test_llmcompiler import Prompts
from tests.runtime.driver.test_flows import cut

JOINED = Reply(when="^Answer the question from", text="Action: Finish(done)")
NOTHING = Reply(when="The plan is running", text="9. join()")


def changes(text: str, when: str = "The plan is running", times: int | None = 1) -> Reply:
    return Reply(when=f"(?s){when}", text=text, times=times)


class World:
    """Tools that note their calls. `wait` ends once `mark` was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        marked = asyncio.Event()

        @tool
        async def find(what: str) -> str:
            """Look something up."""
            self.calls.append(what)
            return f"<{what}>"

        @tool
        async def wait(what: str) -> str:
            """Look something up, slowly."""
            self.calls.append(what)
            await marked.wait()
            return f"<{what}>"

        @tool(side_effects=True)  # so it is called when the whole change is written
        async def mark() -> str:
            """Let the slow ones end."""
            marked.set()
            return "marked"

        @tool(side_effects=True)
        async def write(what: str) -> str:
            """Write something down."""
            self.calls.append(what)
            return "written"

        self.tools: list[Any] = [find, wait, mark, write]


async def run(*replies: Reply, journal: Any = "off", **options: Any) -> tuple[Any, World, list[str]]:
    world, worker = World(), Prompts(*replies)
    async with AsyncOrchestrator(workers=[worker], tools=world.tools, journal=journal) as orchestrator:
        answer = await orchestrator.run("Which?", planner=LLMCompiler(replan="each", **options))
    return answer, world, worker.prompts


async def test_a_dropped_task_never_starts():
    answer, world, prompts = await run(
        JOINED,
        changes('4. drop(3)\n5. mark()\n6. find("d")\n7. join()', "Observation: <a>.*The plan is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. find($2)\n4. join()'),
    )
    assert answer.answer == "done"
    assert sorted(world.calls) == ["a", "b", "d"]
    observed = prompts[-1]
    assert '2. wait("b")\nObservation: <b>' in observed
    assert "3. find($2)\nObservation: none: the task was stopped" in observed
    assert '6. find("d")\nObservation: <d>' in observed
    (dropped,) = (row for row in answer.trace if row.state == "cancelled" and row.name == "3")
    assert (dropped.cause, dropped.tries) == ("pruned", 0)


async def test_a_task_is_replaced_with_those_that_need_it():
    answer, world, prompts = await run(
        JOINED,
        changes('3. find("c, then $2")\n4. find("d, then $3")\n5. mark()\n6. join()', "Observation: <a>.*is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. find($2)\n4. find($3)\n5. join()'),
    )
    assert answer.answer == "done"
    assert sorted(world.calls) == ["a", "b", "c, then <b>", "d, then <c, then <b>>"]
    assert '6. find("d, then $3")\nObservation: <d, then <c, then <b>>>' in prompts[-1]


async def test_a_plan_that_needs_no_change_runs_as_written():
    answer, world, prompts = await run(JOINED, NOTHING, Reply(text='1. find("a")\n2. find($1)\n3. find($2)\n4. join()'))
    assert answer.answer == "done"
    assert world.calls == ["a", "<a>", "<<a>>"]
    plan = next(prompt for prompt in prompts if "is running" not in prompt and "Observation" not in prompt)
    assert all(prompt.startswith(plan.rstrip()) for prompt in prompts if "is running" in prompt)


@pytest.mark.parametrize("line", ["5. drop(1)", "5. drop(2)", "5. drop(77)", "5. drop()", '1. find("again")'])
async def test_only_tasks_that_have_not_begun_are_dropped(line: str):
    answer, world, _ = await run(
        JOINED,
        changes(f"{line}\n6. mark()\n7. join()", "Observation: <a>.*The plan is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. find($2)\n4. join()'),
    )
    assert answer.answer == "done"
    assert {"a", "b", "<b>"} <= set(world.calls)
    assert not any(row.name in "123" and row.state == "cancelled" for row in answer.trace)


async def test_a_model_that_always_adds_tasks_comes_to_an_end():
    answer, world, _ = await run(
        JOINED,
        changes('9. find("a")\n10. find($9)\n11. join()', times=None),
        Reply(text='1. find("a")\n2. find($1)\n3. join()'),
    )
    assert answer.answer == "done"
    assert len(world.calls) <= 2 + 2 * MAX_REVISIONS
    assert sum(row.name.startswith("revise-") for row in answer.trace) <= MAX_REVISIONS


async def test_a_call_with_side_effects_waits_for_the_whole_change():
    answer, world, prompts = await run(
        JOINED,
        changes('4. write("w")\n5. mark()\n6. find($2', "Observation: <a>.*The plan is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. join()'),
    )
    assert answer.answer == "done"
    assert "w" in world.calls
    assert '4. write("w")\nObservation: written' in prompts[-1]


async def test_lines_that_are_no_task_go_to_the_joiner():
    _, world, prompts = await run(
        JOINED,
        changes('4. nonsense("x")\n5. find($3)\n6. mark()\n7. join()', "Observation: <a>.*The plan is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. join()'),
    )
    assert sorted(world.calls) == ["a", "b"]
    assert "there is no tool 'nonsense'" in prompts[-1]


async def test_what_does_not_go_together():
    with pytest.raises(PluginError, match="cannot go with it"):
        LLMCompiler(replan="each", answer_from="last-task")

    @tool
    def drop(task: int) -> int:
        """Drop something else."""
        return task

    async with AsyncOrchestrator(workers=[Prompts(NOTHING)], tools=[drop], journal="off") as orchestrator:
        with pytest.raises(PlannerError, match="a tool is named 'drop'"):
            await orchestrator.run("Which?", planner=LLMCompiler(replan="each"))


async def test_changes_are_replayed_and_resumed(tmp_path: Path):
    replies = (
        JOINED,
        changes('4. drop(3)\n5. mark()\n6. find("d")\n7. join()', "Observation: <a>.*The plan is running"),
        NOTHING,
        Reply(text='1. find("a")\n2. wait("b")\n3. find($2)\n4. join()'),
    )
    whole = tmp_path / "whole.plait"
    answer, *_ = await run(*replies, journal=whole)
    assert answer.answer == "done"
    report = replay(whole, Plugins())
    assert report.divergence is None
    for events in range(6, report.events, 5):
        left = tmp_path / f"{events}.plait"
        cut(whole, left, events)
        world, worker = World(), Prompts(*replies)
        async with AsyncOrchestrator(workers=[worker], tools=world.tools, journal=left) as orchestrator:
            await world.tools[2].fn()
            (entry,) = entries(left)
            again = await orchestrator.resume(entry.run)
        assert (again.status, again.answer) == ("done", "done"), f"killed after {events}"
