"""A run whose journal can no longer be written makes no further call: another process may run it already.

A frozen process whose runs were taken over learns of it by its first write. The machine may order a call in the same
turn of the loop, before the run is cancelled.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait import AsyncOrchestrator, ModelCall, Plan, Step, ToolCall, tool
from plait.core.errors import ConfigError
from plait.workers.scripted import Reply, Scripted

TAKEN = ConfigError("the process is over")


async def test_a_call_that_follows_a_lost_write_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[int] = []

    @tool(side_effects=True)
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    plan = Plan(
        steps=(
            Step(name="say", op=ModelCall(prompt="go")),
            Step(name="pay", op=ToolCall(tool="pay", args={"amount": 3}), needs=("say",)),
        ),
        output="pay",
    )
    worker = Scripted([Reply(text="fine", delay=0.2)])
    async with AsyncOrchestrator(workers=[worker], journal=tmp_path / "runs.plait", tools=[pay]) as plait:
        handle = await plait.submit("x", plan=plan)
        while handle.standing is None:
            await asyncio.sleep(0.01)
        recorder: Any = plait._driver and plait._driver.recorder
        journal = recorder._of[handle.run].journal

        def refuse(*_: Any, **__: Any) -> Any:
            raise TAKEN

        for name in ("append", "enter_end", "acted", "followed"):
            monkeypatch.setattr(journal, name, refuse)
        with pytest.raises(ConfigError, match="the process is over"):
            await handle
        await asyncio.sleep(0.05)
        assert paid == []
        assert not recorder.lost, "what has ended is forgotten"


async def test_an_approval_that_cannot_be_written_allows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []

    @tool(side_effects=True, approve=True)
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    plan = Plan(steps=(Step(name="pay", op=ToolCall(tool="pay", args={"amount": 3})),), output="pay")
    async with AsyncOrchestrator(
        workers=[Scripted([])], journal=tmp_path / "runs.plait", tools=[pay], on_ask="later"
    ) as plait:
        handle = await plait.submit("x", plan=plan)
        while not (questions := handle.questions):
            await asyncio.sleep(0.01)
        recorder: Any = plait._driver and plait._driver.recorder
        journal = recorder._of[handle.run].journal

        def refuse(*_: Any, **__: Any) -> Any:
            raise TAKEN

        monkeypatch.setattr(journal, "note", refuse)
        handle.answer(questions[0].id, True)
        with pytest.raises(ConfigError, match="the process is over"):
            await handle
        await asyncio.sleep(0.05)
        assert paid == []
