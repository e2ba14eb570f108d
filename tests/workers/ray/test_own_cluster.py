"""A local cluster that a worker has started itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plait.workers.ray import RayWorker
from plait.workers.scripted import Reply

pytestmark = [pytest.mark.engine]


async def test_a_cluster_started_here_ends_with_its_last_worker() -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    worker = RayWorker("plait.workers.scripted:Scripted", {"replies": [Reply(text="one")]}, num_cpus=0.1)
    await worker.start()
    assert ray.is_initialized()
    pid = worker.pid
    await worker.close()
    await worker.close()
    assert not ray.is_initialized()
    assert pid is not None
    for _ in range(3000):
        if not _alive(pid):
            break
        await asyncio.sleep(0.1)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
