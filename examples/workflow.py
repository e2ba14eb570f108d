"""A plan with a loop and a condition, checked before it runs. The model's first plan has two faults; it mends them."""

from __future__ import annotations

import json

from pydantic import BaseModel

from plait import Orchestrator, tool
from plait.workers.scripted import Reply, Scripted


class Room(BaseModel):
    room_id: str
    price: float


@tool
def find_rooms(city: str) -> list[Room]:
    """Find free rooms in a city."""
    return [Room(room_id="r1", price=80), Room(room_id="r2", price=60)]


@tool
def rate_room(room_id: str) -> int:
    """Say what guests think of a room, from 1 to 5."""
    return 4 if room_id == "r1" else 2


PLAN = {
    "steps": [
        {"id": "rooms", "call": "find_room", "args": {"city": "Oslo"}},
        {"id": "rates", "foreach": "$rooms", "as": "each", "do": [{"id": "rate", "call": "rate_room", "args": {}}]},
        {
            "id": "advice",
            "if": {"left": "$rates.0", "op": ">=", "right": 3},
            "then": [{"id": "again", "call": "rate_room", "args": {"room_id": "$rooms.0.room_id"}}],
            "else": [],
        },
    ],
    "answer": "Guests give the first room {$rates.0} of 5; asked again: {$advice}.",
}
REPAIR = {
    "replace": {
        "rooms": {"id": "rooms", "call": "find_rooms", "args": {"city": "Oslo"}},
        "rate": {"id": "rate", "call": "rate_room", "args": {"room_id": "$each.room_id"}},
    }
}


def main() -> None:
    model = Scripted([Reply(when="The plan cannot run", text=json.dumps(REPAIR)), Reply(text=json.dumps(PLAN))])
    with Orchestrator(workers=[model], tools=[find_rooms, rate_room]) as plait:
        answer = plait.run("Which room in Oslo do guests like?", planner="workflow")
    print(answer.answer)
    for step in answer.report.steps:
        print(f"{step.name:<14} {step.state}")


if __name__ == "__main__":
    main()

# prints "Guests give the first room 4 of 5"
# prints "rates.2.rate   done"
