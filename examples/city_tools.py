"""Two tools about cities: a file for `--tools`, and a plan that calls both at the same time. Needs no model:

    python examples/city_tools.py
    plait run "How warm is Rome, and how many live there?" --base-url http://localhost:8000/v1 \\
        --tools examples/city_tools.py --planner llmcompiler
"""

from __future__ import annotations

import asyncio

from plait import Join, Orchestrator, Plan, Step, ToolCall, tool

CITIES = {"Oslo": (4.0, 717_000), "Paris": (11.5, 2_100_000), "Rome": (17.5, 2_750_000)}


@tool
async def temperature(city: str) -> float:
    """Degrees Celsius in a city.

    Args:
        city: its English name, such as Rome.
    """
    await asyncio.sleep(0.3)  # a slow service
    return _known(city)[0]


@tool
async def population(city: str) -> int:
    """How many people live in a city.

    Args:
        city: its English name, such as Rome.
    """
    await asyncio.sleep(0.3)
    return _known(city)[1]


def _known(city: str) -> tuple[float, int]:
    if city not in CITIES:
        raise LookupError(f"no city is named {city!r}; there are {', '.join(CITIES)}")
    return CITIES[city]


def main() -> None:
    both = [
        Step(name=each.name, op=ToolCall(tool=each.name, args={"city": "Rome"})) for each in (temperature, population)
    ]
    plan = Plan(steps=(*both, Step(name="both", op=Join(), needs=("temperature", "population"))), output="both")
    with Orchestrator(workers=[], tools=[temperature, population]) as plait:
        answer = plait.run(plan=plan)
    print(answer.unwrap())
    started = [step.started_at or 0.0 for step in answer.report.steps if step.kind == "call"]
    ended = [step.ended_at or 0.0 for step in answer.report.steps if step.kind == "call"]
    print("in parallel:", max(started) < min(ended))


if __name__ == "__main__":
    main()

# prints "[17.5, 2750000]"
# prints "in parallel: True"
