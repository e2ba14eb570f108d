"""Ray Serve on a local cluster of two nodes, one of which is killed: what was found, as one line of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from plait.apps.common.interrupt import descendants
from plait_server.ray_serve import DeployArguments, app

REPLICA = "ray::ServeReplica:plait:plait"
SMALL: dict[str, Any] = {"object_store_memory": 100 << 20}
SCRIPT = {"replies": [{"when": "slowly", "text": "word " * 100, "tokens_per_second": 20}, {"text": "fine"}]}


def replicas() -> list[tuple[int, int]]:
    """Return the processes of replicas, each with its node, which is its parent."""
    found: list[tuple[int, int]] = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(REPLICA):
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                found.append((pid, parent))
    return found


def nodes() -> int:
    return len({node for _, node in replicas()})


async def until(holds: Callable[[], bool], seconds: float = 90.0) -> float:
    """Wait; return how long it took. Raises `TimeoutError`."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"there are {replicas()}")
        await asyncio.sleep(0.2)
    return round(time.monotonic() - began, 1)


async def main(cluster: Any, other: Any, url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask(text: str) -> int:
            body = {"model": "plait/sample:n=2", "messages": [{"role": "user", "content": text}]}
            try:
                answer = await client.post("/v1/chat/completions", json=body)
            except httpx.HTTPError:
                return 0
            whole = answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
            return answer.status_code if whole or answer.status_code != 200 else 0

        found: dict[str, Any] = {}
        await until(lambda: len(replicas()) == 2)
        found["nodes"] = nodes()
        found["answers"] = await asyncio.gather(*(ask("hello") for _ in range(16)))

        load = [asyncio.create_task(ask("slowly")) for _ in range(24)]
        await until(lambda: len(replicas()) == 3)
        found["under load"] = await asyncio.gather(*load)
        found["seconds to two again"] = await until(lambda: len(replicas()) == 2 and nodes() == 2)

        flying = [asyncio.create_task(ask("slowly")) for _ in range(8)]
        await asyncio.sleep(1.0)
        cluster.remove_node(other, allow_graceful=False)
        began, row = time.monotonic(), 0
        while row < 16 and time.monotonic() - began < 90:
            row = row + 1 if await ask("hello") == 200 else 0
        found["served on"], found["seconds to sixteen answers"] = row == 16, round(time.monotonic() - began, 1)
        found["in flight"] = await asyncio.gather(*flying)

        cluster.add_node(num_cpus=2, **SMALL)
        found["seconds to the new node"] = await until(lambda: nodes() == 2)
        found["at the end"] = await asyncio.gather(*(ask("hello") for _ in range(16)))
        return found


if __name__ == "__main__":
    from ray import serve
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **SMALL})
    second = started.add_node(num_cpus=2, **SMALL)
    started.connect()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps(SCRIPT))
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        given = DeployArguments(
            settings={"upstreams": [{"script": str(script)}]}, options={"journal": "off"}, min_replicas=2,
            max_replicas=3, ongoing=2, upscale_seconds=0, downscale_seconds=2,
        )  # fmt: skip
        serve.run(app(given), name="plait")
        sys.stdout.write(json.dumps(asyncio.run(main(started, second, f"http://127.0.0.1:{port}"))) + "\n")
        serve.shutdown()
    started.shutdown()
