"""Random plans give what a small interpreter of plans says: values, failures, and which calls are made at all.

The interpreter knows nothing of scheduling: it reads the steps in order. A join of a quorum whose branches are more
than enough may take any of them, so what depends on it is not determined, and not compared.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from pydantic import JsonValue

from plait import AsyncOrchestrator, Config, tool
from plait.core.ops import Join, ToolCall
from plait.core.plan import Plan, Step
from plait.workers.scripted import Reply, Scripted

PLANS = 60
"""Per seed."""
VALUES: list[Any] = [
    *(None, True, 0, -1.5, "", "é\u0000\U0001f600", [], {}, 10**30, "x" * 3000),
    *([1, [2, {"a": None}]], {"$x": 1}, {"b": 1, "a": 2}),
]
ON_FAILURE: Any = ("all", "quorum", "best-effort", "any-end")
UNKNOWN, FAILED = object(), object()
running: set[str] = set()


@tool
async def call(name: str, value: Any = None, fail: bool = False, wait: float = 0.0) -> Any:
    """Return what it was called with, or fail."""
    running.add(name)
    try:
        await asyncio.sleep(wait)
    finally:
        running.discard(name)
    if fail:
        raise ValueError(f"{name} fails")
    return {"name": name, "value": value}


def draw_plan(dice: random.Random) -> Plan:
    """Return a plan of calls and joins in which every step leads to the output."""
    steps: list[Step] = []
    for number in range(dice.randint(1, 14)):
        name, names = f"s{number}", [step.name for step in steps]
        if not names or dice.random() < 2 / 3:
            read = dice.sample(names, min(len(names), dice.choice([0, 1, 1, 2])))
            value: JsonValue = {"v": dice.choice(VALUES), **{step: {"$ref": step} for step in read}}
            args = {
                "name": name,
                "value": value,
                "fail": dice.random() < 0.15,
                "wait": dice.choice([0, 0, 0.002, 0.01]),
            }
            needs = tuple(dice.sample(names, min(len(names), dice.choice([0, 0, 1]))))
            steps.append(Step(name=name, needs=needs, op=ToolCall(tool="call", args=args)))
        else:
            needs = tuple(dice.sample(names, dice.randint(1, min(5, len(names)))))
            rule = dice.choice(ON_FAILURE)
            quorum = dice.randint(1, len(needs)) if rule == "quorum" else None
            steps.append(Step(name=name, needs=needs, op=Join(on_failure=rule, quorum=quorum)))
    by_name, kept, left = {step.name: step for step in steps}, set[str](), [steps[-1].name]
    while left:
        step = by_name[left.pop()]
        if step.name not in kept:
            kept.add(step.name)
            left += [*step.needs, *reads(step)]
    return Plan(steps=tuple(step for step in steps if step.name in kept), output=steps[-1].name)


def reads(step: Step) -> list[str]:
    """Return the names of the steps whose values are among a call's arguments."""
    value: Any = step.op.args["value"] if isinstance(step.op, ToolCall) else {}
    return [name for name in value if name != "v"]


def interpret(plan: Plan) -> dict[str, Any]:
    """Return the value of each step, `FAILED`, or `UNKNOWN` where it is not determined."""
    values: dict[str, Any] = {}
    for step in plan.steps:
        given = [values[name] for name in (*step.needs, *reads(step))]
        done = [value for value in given if value is not FAILED]
        if any(value is UNKNOWN for value in given):
            values[step.name] = UNKNOWN
        elif isinstance(step.op, ToolCall):
            args: Any = step.op.args
            value = {"v": args["value"]["v"], **{name: values[name] for name in reads(step)}}
            failed = args["fail"] or len(done) < len(given)
            values[step.name] = FAILED if failed else {"name": step.name, "value": value}
        else:
            assert isinstance(step.op, Join)
            least = {"all": len(given), "quorum": step.op.quorum, "best-effort": 1, "any-end": 0}[step.op.on_failure]
            assert least is not None
            known = step.op.on_failure != "quorum" or len(done) == least or least == len(given)
            listed = [None if value is FAILED else value for value in given]
            values[step.name] = FAILED if len(done) < least else listed if known else UNKNOWN
    return values


@pytest.mark.parametrize("seed", range(4))
async def test_random_plans_give_what_an_interpreter_says(seed: int) -> None:
    dice = random.Random(seed)
    compared = 0
    async with AsyncOrchestrator(
        config=Config(journal="off"), workers=[Scripted([Reply(text="x")])], tools=[call]
    ) as orchestrator:
        for _ in range(PLANS):
            plan = draw_plan(dice)
            async with asyncio.timeout(60):
                answer = await orchestrator.run("q", plan=plan)
            wanted = interpret(plan)[plan.output]
            if wanted is FAILED:
                assert answer.status == "failed" and answer.failure is not None, plan.model_dump_json()
            elif wanted is not UNKNOWN:
                assert answer.status == "done", plan.model_dump_json()
                assert json.dumps(answer.value, sort_keys=True) == json.dumps(wanted, sort_keys=True)
            compared += wanted is not UNKNOWN
            await asyncio.sleep(0.002 if running else 0)
            assert not running, "a call outlives its run"
    assert compared > PLANS * 3 / 4
