"""However wide a plan is, and however many tools there are, no turn of the event loop takes long: others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait import AsyncOrchestrator, Budget, Join, Plan, Step, ToolCall, tool
from tests.complexity.counted import Counter, Says, counting

MOST = 60_000
"""Calls of a turn: some 20 ms of CPU."""
BUDGET = Budget(steps=50_000, tokens=10**8)


async def _watch(counter: Counter, turns: list[int]) -> None:
    before = counter.calls
    while True:
        await asyncio.sleep(0)
        turns.append(counter.calls - before)
        before = counter.calls


async def _longest(orchestrator: AsyncOrchestrator, **fields: Any) -> int:
    turns: list[int] = []
    with counting() as counter:
        watching = asyncio.create_task(_watch(counter, turns))
        answer = await orchestrator.run("Go on", budget=BUDGET, **fields)
        watching.cancel()
    assert answer.status == "done", answer.failure
    return max(turns)


@pytest.mark.parametrize("what", ["3,000 samples", "10,000 steps"])
async def test_a_wide_plan_is_made_linked_and_begun_in_slices(what: str) -> None:
    @tool
    async def nothing() -> None:
        """Do nothing."""

    names = tuple(f"s{i}" for i in range(10_000))
    steps = [Step(name=name, op=ToolCall(tool="nothing")) for name in names]
    plan = Plan(steps=(*steps, Step(name="last", op=Join(), needs=names)), output="last")
    fields: dict[str, Any] = {"planner": "sample:n=3000"} if "samples" in what else {"plan": plan}
    async with AsyncOrchestrator(workers=[Says("It is {}.".format)], tools=[nothing], journal="off") as orchestrator:
        await orchestrator.run("First", planner="sample:n=2")
        longest = await _longest(orchestrator, **fields)
    assert longest <= MOST, f"{longest:,} calls in one turn"


async def test_a_turn_of_an_agent_with_a_thousand_tools_is_short() -> None:
    def named(number: int) -> Any:
        def fn(a: int) -> int:
            return a

        fn.__doc__ = f"Tool {number}."
        return tool(name=f"t{number}")(fn)

    said = '<tool_call>{"name": "t5", "arguments": {"a": 1}}</tool_call>'
    model = Says(lambda turn: said if turn % 3 else "answer: 4")
    async with AsyncOrchestrator(workers=[model], tools=[named(i) for i in range(1000)], journal="off") as orchestrator:
        longest = await _longest(orchestrator, planner="react:rounds=6")
    assert longest <= MOST, f"{longest:,} calls in one turn"
