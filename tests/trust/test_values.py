"""Values that a plan doubles: refused by the plan's graph, or stopped while they are counted, never built."""

from __future__ import annotations

import time
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plan, tool
from plait.core.errors import PlanError
from plait.core.request import Request
from plait.workers.scripted import Reply, Scripted
from tests.core.test_value_sizes import doubling, plan


def lenient(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with joins of which the graph does not say how many branches they read."""
    for step in steps:
        if step["op"]["kind"] == "join":
            step["op"]["on_failure"] = "best-effort"
    return steps


def wide(joins: int = 2_000, needs: int = 300) -> list[dict[str, Any]]:
    """Joins that each take the many before them."""
    steps: list[dict[str, Any]] = [{"name": "s0", "op": {"kind": "think", "prompt": "x"}}]
    for at in range(1, joins + 1):
        before = [f"s{each}" for each in range(max(0, at - needs), at)]
        steps.append({"name": f"s{at}", "needs": before, "op": {"kind": "join"}})
    return steps


async def spent(made: Plan, **request: Any) -> tuple[Any, float]:
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="fine")])], journal="off") as plait:
        began = time.process_time()
        answer = await (await plait.submit(Request(**request), plan=made))
        return answer, time.process_time() - began


async def test_a_plan_that_its_graph_gives_away_is_refused_before_anything_runs() -> None:
    for steps in (doubling(40), wide()):
        made, worker = plan(*steps), Scripted([Reply(text="fine")])
        async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
            began = time.process_time()
            with pytest.raises(PlanError, match="bytes"):
                await plait.submit(Request(), plan=made)
            assert time.process_time() - began < 2
            assert not worker.counts["requests"]


@pytest.mark.parametrize("steps", [lenient(doubling(40)), lenient(wide())], ids=["doubling", "wide"])
async def test_what_the_graph_does_not_say_is_counted_before_it_is_built(steps: list[dict[str, Any]]) -> None:
    answer, seconds = await spent(plan(*steps), value_bytes=1 << 20)
    assert answer.value is None and "1,048,576 bytes" in answer.failure.message
    assert seconds < 5


async def test_values_that_are_read_and_not_kept_count_too() -> None:
    """A vote's value is small; what it has to read may be large."""
    steps: list[dict[str, Any]] = [{"name": "a", "op": {"kind": "think", "prompt": "x"}}]
    merge = {"name": "majority"}
    for at in range(100):
        steps.append({"name": f"j{at}", "needs": ["a"], "op": {"kind": "join", "merge": merge}})
    steps.append({"name": "z", "needs": [f"j{at}" for at in range(100)], "op": {"kind": "join"}})
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="long " * 1000)])], journal="off") as plait:
        sampling = {"max_tokens": 5000}
        steps[0]["op"]["sampling"] = sampling
        answer = await (await plait.submit(Request(value_bytes=100_000), plan=plan(*steps)))
    assert answer.value is None and "100,000 bytes" in answer.failure.message


async def test_prompts_and_arguments_that_repeat_a_value_are_not_put_together() -> None:
    @tool
    def large() -> str:
        """Something large."""
        return "y" * 100_000

    @tool
    def take(value: str) -> int:
        """Its length."""
        return len(value)

    made: dict[str, Any] = {"name": "a", "op": {"kind": "call", "tool": "large"}}
    refs: dict[str, Any] = {"kind": "think", "prompt": [{"kind": "ref", "step": "a"}] * 100}
    text = {"kind": "call", "tool": "take", "args": {"value": {"$text": [{"$ref": "a"}] * 100}}}
    for op in (refs, text):
        tried = plan(made, {"name": "b", "op": op})
        for limit, fine in ((11 << 20, True), (1 << 20, False)):
            async with AsyncOrchestrator(
                workers=[Scripted([Reply(text="fine")])], tools=[large, take], journal="off"
            ) as plait:
                answer = await (await plait.submit(Request(value_bytes=limit), plan=tried))
            assert (answer.status == "done") == fine, answer
            if not fine:
                assert "1,048,576 bytes" in answer.failure.message


async def test_a_run_within_its_bytes_has_its_values() -> None:
    answer, _ = await spent(plan(*doubling(3)))
    assert answer.status == "done"
    one: Any = "fine"
    for _ in range(3):
        one = [one, [one]]
    assert answer.value == one
