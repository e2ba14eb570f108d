"""Speculation with real engines: the small bundled model drafts for the large one, which decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.runtime.client.answer import Answer
from plait.runtime.client.config import BUNDLED_MODEL
from plait.workers.engine import Engine
from plait_research.planners.speculate import Speculate
from tests.workers.vllm_server import vllm_server

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.own_engine]

SMALL = Path(BUNDLED_MODEL)
LARGE = SMALL.with_name("countdown-large")
QUESTIONS = ("3 5 7 11 -> 24", "2 4 6 8 -> 24", "1 9 10 12 -> 30")


def words(answer: Answer) -> list[str]:
    return answer.text.split()


async def test_the_text_is_that_of_the_target_alone(tmp_path: Path) -> None:
    if not all((folder / "model.safetensors").exists() for folder in (SMALL, LARGE)):
        pytest.skip("the bundled models are not here")
    draft = Engine(str(SMALL), kv_cache_memory_bytes=32 << 20)
    async with (
        vllm_server(LARGE, LARGE.name, tmp_path / "server.log") as target,
        AsyncOrchestrator(workers=[draft, target], journal="off") as orchestrator,
    ):

        async def asked(window: int) -> list[Answer]:
            planner = Speculate(
                draft=CallConfig(model=draft.models[0], max_tokens=64),
                target=CallConfig(model=LARGE.name, max_tokens=64, stop=";"),
                window=window,
                rounds=400,
            )
            return [await orchestrator.run(each, task="countdown", planner=planner) for each in QUESTIONS]

        alone = await asked(1)
        for window in (2, 4):
            both = await asked(window)
            assert [words(each) for each in both] == [words(each) for each in alone], window
            models = {row.worker for each in both for row in each.trace if row.kind == "think"}
            assert len(models) == 2, "the draft was heard"
    assert all(each.status == "done" for each in alone)
