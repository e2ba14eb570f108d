"""The events of a run tell which text is the answer's, and keep reasoning apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from plait import AsyncOrchestrator, tool
from plait.core.interfaces import Progress
from plait.core.tools.calls import call_text
from plait.runtime.client.answer import StepEvent, TextDelta
from plait.workers.scripted import Reply, Scripted

CALL = call_text("look", '{"city": "Rome"}')


@tool
def look(city: str) -> str:
    """Look at a city."""
    return f"sunny in {city}"


class Thinking(Scripted):
    """Sends its reasoning apart from the text."""

    async def run(self, job: Any) -> AsyncIterator[Any]:
        yield Progress("", 1, reasoning="hm ")
        yield Progress("", 1, reasoning="so")
        async for item in super().run(job):
            yield item


@pytest.mark.parametrize(
    ("planner", "fields", "answers"),
    [
        ("single", {}, {"think"}),
        ("single", {"output": dict[str, int]}, {"think"}),
        ("single", {"output": list[int]}, set()),  # the answer is within the object that the model writes
        ("react", {}, {"turn-1", "turn-2"}),
        ("react:turn.temperature=0.7,n=2", {}, set()),
        ("sample:n=2", {}, set()),
    ],
)
async def test_the_text_of_the_answer_is_marked(planner: str, fields: Any, answers: set[str]) -> None:
    text = '{"n": 42}' if "output" in fields else "It is sunny."
    text = '{"value": [42]}' if fields.get("output") == list[int] else text
    replies = [Reply(when="sunny in", text=text), Reply(text=CALL if "react" in planner else text)]
    marked: dict[type, set[str]] = {TextDelta: set(), StepEvent: set()}
    async with AsyncOrchestrator(workers=[Scripted(replies)], tools=[look], journal="off") as plait:
        async for event in plait.stream("How is Rome?", planner=planner, **fields):
            if isinstance(event, TextDelta | StepEvent) and event.answer:
                marked[type(event)].add(event.name if isinstance(event, TextDelta) else event.record.name)
    assert marked == {TextDelta: answers, StepEvent: answers}


async def test_reasoning_comes_apart_from_the_text() -> None:
    async with AsyncOrchestrator(workers=[Thinking([Reply(text="42.")])], journal="off") as plait:
        texts = [event async for event in plait.stream("6 x 7?", modes=["text"])]
    deltas = [event for event in texts if isinstance(event, TextDelta)]
    assert "".join(delta.reasoning for delta in deltas) == "hm so"
    assert "".join(delta.text for delta in deltas) == "42."
