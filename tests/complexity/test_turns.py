"""A turn costs the same however long the conversation is, and so does what it writes down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Budget, Flow, Plugin, tool
from plait.core.flow import Answerable, Context
from tests.complexity.counted import Says, counting, each

TURNS = 161


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Talk(Flow):
    """Goes on with one line."""

    chat: bool = True

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Take all turns."""
        line = await ctx.think(question, chat=self.chat)
        for number in range(TURNS - 1):
            line = await line.think(f"And then, {number}?", chat=self.chat)
        return line


def _calls(number: int) -> str:
    call = json.dumps({"name": "add", "arguments": {"a": number, "b": 2}})
    return f"So far {number}. <tool_call>{call}</tool_call>" if number < TURNS else "Done."


@pytest.mark.parametrize("what", ["react", "chat", "line"])
async def test_a_turn_costs_the_same_at_any_length(what: str, tmp_path: Path) -> None:
    planner = {"react": Plugin(name="react", options={"rounds": TURNS}), "chat": Talk(), "line": Talk(chat=False)}[what]
    with counting() as counter:
        model = Says(_calls if what == "react" else "Said {}.".format, counter)
        async with AsyncOrchestrator(workers=[model], tools=[add], journal="off") as orchestrator:
            answer = await orchestrator.run("Go on", planner=planner, budget=Budget(steps=10_000, tokens=10**7))
    assert answer.status == "done", answer.failure
    early, late = each(model.at, 10), each(model.at, 150)
    assert late <= 1.1 * early, f"{early:.0f} calls a turn at 10, {late:.0f} at 150"
