"""An engine whose cache evicts: what its own events say is held is what it then really finds."""

from __future__ import annotations

from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.ops import Plugin
from plait.workers.engine import Engine

from ..prefix_agreement import agreement


@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.parametrize("process", ["shared", pytest.param("own", marks=pytest.mark.slow)])
async def test_the_index_agrees_with_the_hits_of_an_engine_that_evicts(process: str) -> None:
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    small: dict[str, Any] = {"slots": 4, "kv_cache_memory_bytes": 5 << 20, "max_model_len": 512, "kv_events": True}
    engine = Engine(config.model, process=process, **small)
    async with AsyncOrchestrator(workers=[engine], config=config) as orchestrator:
        assert engine._core is not None and engine._core.on_prompt_end is not None
        found = await agreement(orchestrator, engine.name, 0.8)  # the driver hears of it a few times a second
    assert found["hits"] > 15 and found["evictions"] >= 4, found
    assert len(found["wrong"]) <= 3, found
