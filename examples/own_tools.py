"""Two tools of your own, called in parallel by a plan of your own. Runs without a model."""

from __future__ import annotations

import asyncio
import time

from plait import Orchestrator, Plan, Ref, Step, ToolCall, tool


@tool
async def temperature(city: str) -> float:
    """Degrees Celsius in a city, from a slow service."""
    await asyncio.sleep(0.3)
    return {"Oslo": 4.0, "Rome": 17.5}[city]


@tool
def warmer(first: float, second: float) -> str:
    """Which of the two is warmer, and by how much. An ordinary function: it runs on a thread."""
    time.sleep(0.05)
    return f"the {'first' if first > second else 'second'}, by {abs(first - second):g} degrees"


def main() -> None:
    # `warmer` refers to the two others, so it waits for both; they wait for nothing, so they run at the same time.
    plan = Plan(
        steps=(
            Step(name="oslo", op=ToolCall(tool="temperature", args={"city": "Oslo"})),
            Step(name="rome", op=ToolCall(tool="temperature", args={"city": "Rome"})),
            Step(
                name="answer", op=ToolCall(tool="warmer", args={"first": Ref(step="oslo"), "second": Ref(step="rome")})
            ),
        ),
        output="answer",
    )
    with Orchestrator(workers=[], tools=[temperature, warmer]) as plait:
        answer = plait.run(plan=plan)
    print(answer.unwrap())
    started = {step.name: step.started_at or 0.0 for step in answer.report.steps}
    ended = {step.name: step.ended_at or 0.0 for step in answer.report.steps}
    print("in parallel:", started["rome"] < ended["oslo"] and started["oslo"] < ended["rome"])


if __name__ == "__main__":
    main()

# prints "the second, by 13.5 degrees"
# prints "in parallel: True"
