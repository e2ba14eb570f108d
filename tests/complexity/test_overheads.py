"""What the journal and a policy that places add to a step, in calls. A step without them gets cheaper on its own, so
the limits are calls and not ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Config, Join, Plan, Plugin, Step, ToolCall, tool
from tests.complexity.counted import Says, counting


@tool
async def nothing() -> None:
    """Do nothing."""


def graph(shape: str, size: int) -> Plan:
    """Return a chain, a fan, or layers of ten of which each step needs two."""
    needs = {
        "chain": lambda i: (i - 1,),
        "fan": lambda i: (0,),
        "layers": lambda i: (i - 10, i - i % 10 - 10 + (i + 1) % 10) if i >= 10 else (),
    }[shape]
    edges = [tuple(sorted(needs(i))) if i else () for i in range(size)]
    read = {need for each in edges for need in each}
    names = tuple(f"s{i}" for i in range(size) if i not in read)
    steps = [
        Step(name=f"s{i}", op=ToolCall(tool="nothing"), needs=tuple(f"s{j}" for j in each))
        for i, each in enumerate(edges)
    ]
    return Plan(steps=(*steps, Step(name="last", op=Join(), needs=names)), output="last")


@pytest.mark.parametrize("shape", ["chain", "fan", "layers"])
async def test_a_step_costs_little_more_with_the_journal(shape: str, tmp_path: Path) -> None:
    plan, calls = graph(shape, 90), dict[bool, int]()
    for written in (False, True):
        config = Config(journal=tmp_path / "journal" if written else "off")
        async with AsyncOrchestrator(workers=[], tools=[nothing], config=config) as orchestrator:
            await orchestrator.run(plan=plan)
            with counting() as counter:
                answer = await orchestrator.run(plan=plan)
                assert answer.status == "done"
        calls[written] = counter.calls
    assert (calls[True] - calls[False]) / 91 <= 50, f"{calls[False]} calls, {calls[True]} written"


@pytest.mark.parametrize("engines", [4, 64])
@pytest.mark.parametrize("characters", [200, 200_000])
async def test_a_step_costs_little_more_where_it_is_placed(engines: int, characters: int) -> None:
    calls = dict[bool, int]()
    for placed in (False, True):
        workers = [Says("It is {}.".format) for _ in range(engines)]
        for number, worker in enumerate(workers):
            worker.name = f"model-{number}"
        policies = (Plugin(name="affinity"),) if placed else ()
        async with AsyncOrchestrator(workers=workers, journal="off") as orchestrator:
            await orchestrator.run("First", planner="sample:n=64", policies=policies)
            with counting() as counter:
                answer = await orchestrator.run("why " * (characters // 4), planner="sample:n=64", policies=policies)
                assert answer.status == "done", answer.failure
        calls[placed] = counter.calls
    assert (calls[True] - calls[False]) / 65 <= 195, f"{calls[False]} calls, {calls[True]} placed"
