"""Engines that come and go on a Ray cluster of two nodes; four are killed and two go on: what it found, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step
from plait.core import Text
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait.workers.ray import RayWorker, pool

REPLIES = [{"when": "slow", "text": "word " * 60, "tokens_per_second": 30}, {"text": "fine", "delay": 0.3}]


def hosted(count: int, least: int) -> list[RayWorker]:
    """Return workers in actors that need no engine and reserve a CPU each: two find room on a node."""
    options = {"replies": REPLIES, "slots": 4}
    return pool(count, "plait.workers.scripted:Scripted", options, num_cpus=1, least=least, start_timeout=60)


def there(workers: list[RayWorker]) -> int:
    return sum(worker.ready for worker in workers)


async def until(workers: list[RayWorker], count: int, seconds: float = 40.0) -> float:
    """Wait until so many engines are there; return after how many seconds."""
    began = time.monotonic()
    while there(workers) != count and time.monotonic() - began < seconds:
        await asyncio.sleep(0.05)
    return time.monotonic() - began


def wide(prompt: str, width: int) -> Plan:
    ask = ModelCall(prompt=(Text(text=prompt),), sampling=Sampling(max_tokens=100))
    names = tuple(f"s{i}" for i in range(width))
    return Plan(
        steps=(*(Step(name=name, op=ask) for name in names), Step(name="all", op=Join(), needs=names)), output="all"
    )


def copied(live: Path, left: Path) -> None:
    """Keep the journal as a process that dies now would leave it."""
    for suffix in ("", "-wal", "-shm"):
        if Path(f"{live}{suffix}").exists():
            shutil.copy(f"{live}{suffix}", f"{left}{suffix}")


async def main() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        live, left = Path(folder) / "live.plait", Path(folder) / "left.plait"
        workers = hosted(4, least=2)
        elastic: dict[str, Any] = {"engines": 2, "max_engines": 4, "cool_down": 1.0}
        async with AsyncOrchestrator(workers=workers, journal="off", **elastic) as orchestrator:
            found["at first"] = there(workers)
            busy = asyncio.create_task(orchestrator.run(plan=wide("quick", 200)))
            await until(workers, 4)
            found["under load"], found["pids"] = there(workers), len({worker.pid for worker in workers})
            found["busy run"] = (await busy).status
            await until(workers, 2)
            found["afterwards"] = there(workers)
        workers = hosted(4, least=4)
        async with AsyncOrchestrator(workers=workers, journal=live) as orchestrator:
            await orchestrator.submit(plan=wide("slow", 24))
            await asyncio.sleep(3.0)  # sixteen run at a time, for two seconds
            copied(live, left)
            for worker in workers:
                os.kill(worker.pid or 0, signal.SIGKILL)
        (entry,) = entries(left)
        found["done before"] = sum(row.kind == "succeeded" for row in Journal(left).rows())
        workers = hosted(2, least=2)
        async with AsyncOrchestrator(workers=workers, journal=left) as orchestrator:
            answer = await orchestrator.resume(entry.run)
            generated = [await worker.stats() for worker in workers]
        found |= {
            "status": answer.status,
            "whole": answer.text.count("word"),
            "requests": sum(each["requests"] for each in generated),
        }
    return found


if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20})
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    os.environ["RAY_ADDRESS"] = str(cluster.address)
    sys.stdout.write(json.dumps(asyncio.run(main())) + "\n")
    cluster.shutdown()
