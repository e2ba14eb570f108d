"""A server on a host: `python serve_child.py STORE LEDGER ADDRESS PORT MODEL...`. Its tools write to the ledger.

`SERVE_SETTINGS` in the environment has more settings, as JSON; without it the server is open to all. `SERVE_MCP` has
the address of a server of tools.
MODEL is the address of a server of models, or `ray:RESOURCE`: an actor on the node of the Ray cluster that has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from plait import AsyncOrchestrator, Config, tool
from plait.core.interfaces import Worker
from plait.core.tools.context import ToolContext
from plait.workers.tools.sandbox import Sandbox
from plait_server.server import Server
from plait_server.service import Service
from plait_server.settings import Settings, Upstream, workers_of

STORE, LEDGER, ADDRESS, PORT, *MODELS = sys.argv[1:]


def write(**line: object) -> None:
    """Append one line to the ledger."""
    handle = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


@tool(side_effects=True)
async def pay(ctx: ToolContext, amount: int) -> int:
    """Pay: must never happen twice."""
    await asyncio.sleep(0.02)
    write(tool="pay", key=ctx.key, run=ctx.key.partition(":")[0])
    await asyncio.sleep(0.02)
    return amount


@tool(side_effects=True, idempotent=True)
async def put(ctx: ToolContext, amount: int) -> int:
    """Put: may happen twice, with the same key."""
    await asyncio.sleep(0.02)
    write(tool="put", key=ctx.key, run=ctx.key.partition(":")[0])
    return amount


def actor(node: str) -> Worker:
    """An actor that comes back however often its node dies."""
    from plait.workers.ray import RayWorker

    options = {"replies": [{"text": "fine", "delay": 0.05}]}
    return RayWorker("plait.workers.scripted:Scripted", options, name=f"actor-{node}", num_cpus=0.1,
                     resources={node: 0.01}, restarts=10_000, silence=10.0, count=1)  # fmt: skip


async def main() -> None:
    """Serve until killed."""
    mcp = tuple(filter(None, [os.environ.get("SERVE_MCP")]))
    config = Config(journal=STORE, pool="faults", pool_lease=2.0, mcp=mcp)  # pyright: ignore[reportArgumentType]
    upstreams = tuple(Upstream(base_url=url) for url in MODELS if url.startswith("http"))
    more = json.loads(os.environ.get("SERVE_SETTINGS", '{"open": true}'))
    settings = Settings(host=ADDRESS, port=int(PORT), upstreams=upstreams, drain_seconds=2.0, **more)
    workers: list[Worker] = [actor(url.removeprefix("ray:")) for url in MODELS if url.startswith("ray:")]
    workers += workers_of(config, settings) if upstreams else []
    tools = [pay, put, *Sandbox("process", warm=1).tools()]
    orchestrator = AsyncOrchestrator(config=config, workers=workers, tools=tools)
    await Server(Service(orchestrator, settings, workers)).serve()


if __name__ == "__main__":
    asyncio.run(main())
