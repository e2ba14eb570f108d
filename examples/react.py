"""A model that calls tools turn by turn. Two calls of one turn run side by side, while the turn is still written."""

from __future__ import annotations

from city_tools import population

from plait import Orchestrator
from plait.workers.scripted import Reply, Scripted

FIRST = """I need both numbers.
<tool_call>{"name": "population", "arguments": {"city": "Rome"}}</tool_call>
<tool_call>{"name": "population", "arguments": {"city": "Paris"}}</tool_call>
They are independent, so both may run while I write this down."""


def main() -> None:
    model = Scripted(
        [
            Reply(when="2750000", text="Answer: Rome"),
            Reply(text=FIRST, tokens_per_second=60),
        ]
    )
    with Orchestrator(workers=[model], tools=[population]) as plait:
        answer = plait.run("Is Rome or Paris larger?", planner="react")
    print(answer.answer)
    for step in answer.report.steps:
        print(f"{step.name:<10} {step.state:<5} {step.started_at or 0:.2f} s to {step.ended_at or 0:.2f} s")


if __name__ == "__main__":
    main()

# prints "Rome\n"
# prints "call00002  done"
