"""Arithmetic sampling is exact in an engine in a Ray actor, and in a vLLM server that loads the logits processor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from plait.core.interfaces import Worker
from plait.workers.ray import RayWorker

from ..by_codes import divides_the_distribution, gives_a_line_again
from ..vllm_server import vllm_server

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@asynccontextmanager
async def in_ray(model: Path, folder: Path) -> AsyncIterator[Worker]:
    """An engine in an actor."""
    options = {"model": str(model), "slots": 16, "kv_cache_memory_bytes": 32 << 20, "threads": 1}
    worker = RayWorker(options=options, start_timeout=300.0)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()


@asynccontextmanager
async def in_server(model: Path, folder: Path) -> AsyncIterator[Worker]:
    """A server of vLLM's own."""
    processor = "--logits-processors=plait.workers.engine.arithmetic:Arithmetic"
    async with vllm_server(model, "tiny", folder / "server.log", processor) as worker:
        yield worker


@pytest.mark.parametrize("elsewhere", [in_ray, in_server])
async def test_the_lines_divide_the_distribution_and_can_be_drawn_again(
    elsewhere: Callable[[Path, Path], AbstractAsyncContextManager[Worker]], tiny_model: Path, tmp_path: Path
) -> None:
    async with elsewhere(tiny_model, tmp_path) as worker:
        await divides_the_distribution(worker)
        await gives_a_line_again(worker)
