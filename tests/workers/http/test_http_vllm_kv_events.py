"""A real `vllm serve` whose cache evicts: what its events say is held is what it then reports as cached, also where a
third of the prompts come from another client."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin
from plait.core.result import Result
from plait.workers.http import Http

from ..prefix_agreement import agreement
from ..vllm_server import vllm_server

pytest.importorskip("zmq")
pytest.importorskip("msgspec")


@pytest.mark.slow
@pytest.mark.engine
async def test_the_index_agrees_with_the_hits_that_a_server_reports(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        events = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    config = Config(journal="off", policies=(Plugin(name="affinity"),))
    settings = {"kv-cache-memory-bytes": 5 << 20, "max-model-len": 512, "max-num-seqs": 4}
    async with vllm_server(
        Path(config.model), "served", tmp_path / "server.log", kv_events=events, **settings
    ) as worker:
        other, asked = Http(worker.base_url, slots=4, name="other"), 0

        async def foreign(think: ModelCall) -> None:
            nonlocal asked
            asked += 1
            *_, last = [item async for item in other.run(Job(attempt=asked, run="o", step="o:a", op=think))]
            assert isinstance(last, Result), last

        await other.start()
        try:
            async with AsyncOrchestrator(workers=[worker], config=config) as orchestrator:
                found = await agreement(orchestrator, worker.name, 0.6, foreign)
        finally:
            await other.close()
    assert asked == 20
    assert found["hits"] > 20 and found["evictions"] >= 2, found
    assert len(found["wrong"]) <= 2, found
