"""Models that think before they answer: every planner answers on them, or fails in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from plait import AsyncOrchestrator, Plugin
from plait.runtime.client.answer import Answer
from plait.workers.http import Http
from tests.ledger.cells import replies
from tests.planners.test_contract import ASKS, NAMES, OPTIONS, PROMPT, run_python, search

from .server import SHAPES, Shape, ThinkingServer


@dataclass(frozen=True)
class Ran:
    """A run and the server that it was on."""

    answer: Answer
    server: ThinkingServer

    @property
    def spoken(self) -> int:
        """Tokens that were generated and are no thoughts."""
        return self.server.truth.completion - self.server.thought


async def run(name: str, shape: Shape, **generation: Any) -> Ran:
    async with ThinkingServer.thinking(shape, replies=replies(name)) as server:
        worker = Http(server.url, name="w", slots=4, backoff=0.001)
        async with AsyncOrchestrator(workers=[worker], tools=[search, run_python], journal="off") as plait:
            await plait.start()
            server.truth.completion = server.thought = 0
            task, text = ASKS.get(name, ("plain", PROMPT))
            spec = Plugin(name=name, options=OPTIONS.get(name, {}))
            answer = await plait.run(text, planner=spec, task=task, seed=7, generation=generation or None)
        return Ran(answer, server)


@pytest.mark.parametrize("name", NAMES)
async def test_every_planner_answers_on_a_model_that_thinks(name: str) -> None:
    """As it does on one that does not; and calls that only steer are asked for without thoughts."""
    plain = await run(name, "instruct")
    for shape in SHAPES[1:]:
        ran = await run(name, shape)
        assert ran.answer.status == plain.answer.status, (shape, ran.answer.failure)
        assert "hm hm" not in str(ran.answer.value), (shape, ran.answer.value)
        assert ran.answer.text or ran.answer.failure is not None, shape
        if shape != "stubborn":
            assert ran.spoken <= 1.2 * plain.spoken, shape


@pytest.mark.parametrize("name", ["single", "sample", "adaptive", "refine", "debate"])
async def test_a_run_whose_calls_are_all_cut_off_in_their_thoughts_fails(name: str) -> None:
    ran = await run(name, "parser", thinking_tokens=100, thinking="on")
    assert ran.answer.status == "failed" and ran.answer.failure is not None
    assert "thinking_tokens" in ran.answer.failure.message
    assert ran.answer.usage.completion == ran.server.truth.completion
    if name == "adaptive":
        assert ran.server.thought <= 4 * 612, "it stops after its first round"
