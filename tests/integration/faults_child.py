"""A process that loses engines, nodes and whole clusters, and may be lost itself: what it found, as one line of JSON.

python faults_child.py engine_and_node|head
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Before Ray is imported: after so many seconds without its head node (a minute by default) it ends this process.
RAYS_PATIENCE = 30
os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = str(RAYS_PATIENCE)

from experiments.faults import run as faults  # noqa: E402
from plait import AsyncOrchestrator, Config, Orchestrator  # noqa: E402
from plait.apps.common.interrupt import descendants  # noqa: E402
from plait.runtime.client.config import BUNDLED_MODEL  # noqa: E402
from plait.workers.ray import RayWorker, pool  # noqa: E402

OFF = Config(journal="off")
REPLIES = [{"when": "slow", "text": "word " * 9000, "tokens_per_second": 100}, {"text": "one two three"}]


def engine_and_node() -> dict[str, Any]:
    """Two engines on two nodes: first one engine is killed, then one node."""
    from ray.cluster_utils import Cluster

    faults.PROBLEMS = 24
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    other = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    os.environ["RAY_ADDRESS"] = str(cluster.address)
    options = {"model": str(BUNDLED_MODEL), "slots": 64, "checkpoint": 2, "threads": 1}

    async def both(ledger: Path) -> dict[str, Any]:
        workers = pool(
            2, "experiments.faults.run:Counted", {**options, "ledger": str(ledger)}, strategy="STRICT_SPREAD"
        )
        async with AsyncOrchestrator(workers=workers, config=OFF) as orchestrator:
            await faults.solve(orchestrator, 99)
            killed = await faults.trial(orchestrator, workers, ledger, seed=3)
            return {"engine": killed, "node": await faults.node_trial(orchestrator, other, ledger, seed=4)}

    with tempfile.TemporaryDirectory() as ledger:
        found = asyncio.run(both(Path(ledger)))
    del os.environ["RAY_ADDRESS"]
    cluster.shutdown()
    return found


def hosted(name: str) -> list[RayWorker]:
    """Return a worker in an actor that needs no engine."""
    return [RayWorker("plait.workers.scripted:Scripted", {"replies": REPLIES}, name=name, num_cpus=0.1)]


def head() -> dict[str, Any]:
    """A local cluster whose first user leaves, and which is then killed under the second."""
    first = Orchestrator(workers=hosted("first"), config=OFF)
    found = {"first": first.run("x").text}
    with Orchestrator(workers=hosted("second"), config=OFF) as second:
        first.close()  # and with it the event loop and the threads on whose behalf the cluster was started
        time.sleep(0.5)
        found["second"] = second.run("x").text
    found |= asyncio.run(_headless())
    with Orchestrator(workers=hosted("third"), config=OFF) as third:
        found["third"] = third.run("x").text
    return found


async def _headless() -> dict[str, Any]:
    async with AsyncOrchestrator(workers=hosted("lost"), config=OFF) as orchestrator:
        slow = asyncio.create_task(orchestrator.run("slow"))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        for pid in descendants(os.getpid()):  # as when the machine is switched off
            os.kill(pid, signal.SIGKILL)
        lost = await asyncio.wait_for(slow, 300)
        after = await asyncio.wait_for(orchestrator.run("x"), 300)
    await asyncio.sleep(max(0.0, RAYS_PATIENCE + 4 - (time.monotonic() - began)))  # by then Ray has had its chance
    return {
        "lost": [lost.status, lost.failure.message if lost.failure else None],
        "after": [after.status, after.failure.message if after.failure else None],
    }


if __name__ == "__main__":
    part = {"engine_and_node": engine_and_node, "head": head}[sys.argv[1]]
    sys.stdout.write(json.dumps(part()) + "\n")
