"""A typed, budgeted, parallel agent: a lead asks a scout for each city, side by side, and answers with an object."""

from __future__ import annotations

from city_tools import population
from pydantic import BaseModel

from plait import Agent, Budget, Orchestrator
from plait.workers.scripted import Reply, Scripted


class City(BaseModel):
    name: str
    people: int


def scripted(city: str) -> str:
    return f'<tool_call>{{"name": "scout", "arguments": {{"question": "How many live in {city}?"}}}}</tool_call>'


MODEL = [  # in the place of a model
    Reply(when="cannot be used", text='{"name": "Rome", "people": 2750000}'),
    Reply(when="one for each.*2750000.*2100000", text="Rome, with 2750000."),
    Reply(when="one for each", text=scripted("Rome") + scripted("Paris")),
    Reply(when="in Rome.*Tool: (\\d+)", text="2750000"),
    Reply(when="in Paris.*Tool: (\\d+)", text="2100000"),
    Reply(when="in Rome", text='<tool_call>{"name": "population", "arguments": {"city": "Rome"}}</tool_call>'),
    Reply(when="in Paris", text='<tool_call>{"name": "population", "arguments": {"city": "Paris"}}</tool_call>'),
]


def main() -> None:
    scout = Agent(name="scout", instructions="Look it up.", tools=("population",), budget=Budget(tokens=2000))
    lead = Agent(name="lead", tools=(), agents=(scout,), instructions="Ask scouts, one for each city.")
    with Orchestrator(workers=[Scripted(MODEL)], tools=[population]) as plait:
        answer = plait.run("Which is larger, Rome or Paris?", planner=lead, output=City, tokens=10_000)
    print(answer.output)
    calls = [step for step in answer.trace if step.kind == "call"]
    starts, ends = [step.started_at or 0.0 for step in calls], [step.ended_at or 0.0 for step in calls]
    print("in parallel:", max(starts) < min(ends))


if __name__ == "__main__":
    main()

# prints "name='Rome' people=2750000"
# prints "in parallel: True"
