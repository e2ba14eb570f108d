"""Hints about what a run will do next: which trajectory waits for which, and how long its pauses are."""

from __future__ import annotations

import asyncio
from typing import Any

from plait import AsyncOrchestrator, tool
from plait.core.events import Hints, Job
from plait.workers.scripted import Reply, Scripted

CALL = '<tool_call>{{"name": "look", "arguments": {{"at": "{}"}}}}</tool_call>'
TOOL_S = 0.05


@tool
async def look(at: str) -> str:
    """Look something up."""
    await asyncio.sleep(TOOL_S)
    return at


class Hinted(Scripted):
    """Keeps the hints of its jobs by step name."""

    hints = True

    def __init__(self, *texts: str, **replies: str) -> None:
        super().__init__([*(Reply(text=text, times=1) for text in texts), Reply(text="done")])
        self.seen: dict[str, Hints] = {}

    def run(self, job: Job) -> Any:
        assert job.hints is not None
        self.seen[job.step.rpartition(":")[2].rpartition("/")[2]] = job.hints
        return super().run(job)


async def ask(worker: Hinted, planner: str, *sessions: str) -> None:
    async with AsyncOrchestrator(workers=[worker], tools=[look], journal="off") as orchestrator:
        for session in sessions or ("",):
            answer = await orchestrator.run("Where?", planner=planner, session=session)
            assert answer.status == "done", answer.failure


async def test_turns_are_numbered_and_the_pauses_of_tools_are_learned() -> None:
    worker = Hinted(CALL.format("a"), CALL.format("b"), CALL.format("c"))
    await ask(worker, "react")
    first, *later = turns = [worker.seen[f"turn-{number}"] for number in (1, 2, 3, 4)]
    assert len({turn.session for turn in turns}) == 1 and [turn.turn for turn in turns] == [0, 1, 2, 3]
    assert all(turn.continues for turn in turns) and not any(turn.final or turn.blocks_parent for turn in turns)
    assert first.pause is None and all(turn.pause is not None and turn.pause >= TOOL_S for turn in later)


async def test_what_a_text_plans_is_awaited_by_its_trajectory() -> None:
    worker = Hinted('1. look("a")\n2. join()<END_OF_PLAN>', "Thought: so\nAction: Finish(a)<END_OF_RESPONSE>")
    await ask(worker, "llmcompiler")
    plan, joiner = worker.seen["plan-1"], worker.seen["joiner-1"]
    assert joiner.parent == plan.session != joiner.session and joiner.blocks_parent and not plan.blocks_parent
    assert joiner.pause is None and joiner.final and not joiner.continues


async def test_a_client_s_session_has_pauses_of_its_own_and_no_numbers() -> None:
    worker = Hinted("one", "two")
    await ask(worker, "single", "S")
    (alone,) = worker.seen.values()
    assert alone.pause is None and alone.turn is None
    await ask(worker, "single", "S", "S")
    (hints,) = worker.seen.values()
    assert hints.session == hints.program == "S" and hints.continues and not hints.final
    assert hints.turn is None and hints.pause is not None and not hints.blocks_parent


async def test_the_children_of_a_fork_block_the_parent_that_goes_on_after_them() -> None:
    from plait import ModelCall, Plan, Ref, Step

    def think(name: str, after: str | None = None, *reads: str) -> Step:
        return Step(name=name, op=ModelCall(prompt=("x", *(Ref(step=each) for each in reads)), after=after))

    steps = (think("root"), think("lead", "root"), think("child", "root"), think("side", "root"))
    plan = Plan(steps=(*steps, think("on", "root", "lead", "child"), think("end", None, "on", "side")), output="end")
    worker = Hinted()
    async with AsyncOrchestrator(workers=[worker], journal="off") as orchestrator:
        assert (await orchestrator.run("x", plan=plan)).status == "done"
    seen = worker.seen
    assert seen["lead"].session == seen["root"].session == seen["child"].parent == seen["side"].parent
    assert seen["child"].blocks_parent and not seen["side"].blocks_parent
