"""`react-ahead` through a server: with and without keys, streamed and journalled, clients and tools see what they see
with `react`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from plait import tool
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall, Plugin
from plait.core.result import Failure, Result
from plait.core.tools.calls import call_text
from plait.runtime.journal.directory import entries
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted

PATTERNS = [
    {"after": "", "tool": "user", "sources": {"id": {"shape": "[a-z]+_[0-9]{4}"}}, "predicted": 9, "right": 9},
    {
        "after": "user", "tool": "order", "sources": {"id": {"tool": "user", "path": ["orders", "*"]}},
        "predicted": 9, "right": 8,
    },
    {"after": "user", "tool": "cancel", "sources": {"id": {"constant": "#W22"}}, "predicted": 9, "right": 9},
]  # fmt: skip
REPLIES = (
    Reply(when="cancelled #W22", text="Order #W22 is cancelled.", tokens_per_second=20),
    Reply(when="#W22 is late", text=call_text("cancel", '{"id": "#W22"}'), tokens_per_second=20),
    Reply(when="orders", text=call_text("order", '{"id": "#W22"}'), tokens_per_second=20),
    Reply(text=call_text("user", '{"id": "mia_3668"}'), tokens_per_second=20),
)
QUESTION = [{"role": "user", "content": "I am mia_3668. Cancel what is late."}]
MADE: list[str] = []


@tool
async def user(id: str) -> dict[str, Any]:
    """Return a user."""
    MADE.append(f"user {id}")
    return {"orders": ["#W11", "#W22"]}


@tool
async def order(id: str) -> str:
    """Return the state of an order."""
    MADE.append(f"order {id}")
    return f"{id} is late"


@tool(side_effects=True)
async def cancel(id: str) -> str:
    """Cancel an order."""
    MADE.append(f"cancel {id}")
    return f"cancelled {id}"


class Recording(Scripted):
    """Keeps what the model was shown."""

    def __init__(self) -> None:
        super().__init__(REPLIES)
        self.shown: list[list[tuple[str, str]]] = []

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall)
        self.shown.append([(message.role, message.text) for message in job.op.messages])
        async for item in super().run(job):
            yield item


async def play(serve: Any, journal: Path, planner: Plugin, stream: bool) -> tuple[str, list[Any], list[str]]:
    """Ask once; return the answer, what the model was shown, and the calls in their order."""
    MADE.clear()
    worker, tools = Recording(), [user, order, cancel]
    async with serve(
        workers=[worker], tools=tools, journal=str(journal), config={"planner": planner}, planners=[planner.name]
    ) as served:
        chats = served.client().chat.completions
        if stream:
            chunks = [chunk async for chunk in await chats.create(model="q", messages=QUESTION, stream=True)]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            text = (await chats.create(model="q", messages=QUESTION)).choices[0].message.content
    (entry,) = entries(journal)
    report = replay(entry.path, Plugins())
    assert entry.status == "done" and report.divergence is None and report.recomputed == 0
    return text, worker.shown, list(MADE)


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_transcripts_and_side_effects_are_those_of_react(
    serve: Any, tmp_path: Path, stream: bool
) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("plait_research")
    plain = await play(serve, tmp_path / "react", Plugin(name="react"), stream)
    planner = Plugin(name="react-ahead", options={"patterns": PATTERNS})
    ahead = await play(serve, tmp_path / "ahead", planner, stream)
    assert ahead[:2] == plain[:2] and plain[0] == "Order #W22 is cancelled."
    assert plain[2] == ["user mia_3668", "order #W22", "cancel #W22"]
    assert sorted(ahead[2]) == sorted([*plain[2], "order #W11"]), "each call once, and a wrong guess"
    assert ahead[2][-1] == "cancel #W22", "side effects come when the model asks for them"
