"""A server process for the kill harness: `python serve_child.py STORE LEDGER`. Prints its address."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from plait import AsyncOrchestrator, Config, tool
from plait.core.tools.context import ToolContext
from plait.workers.scripted import Reply, Scripted
from plait_server.server import Server
from plait_server.service import Service
from plait_server.settings import Settings


def write(**line: object) -> None:
    """Append one line to the ledger."""
    handle = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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


async def main() -> None:
    """Serve until killed."""
    workers = [Scripted([Reply(text="one two three four five six", tokens_per_second=40)], slots=16)]
    config = Config(journal=sys.argv[1], pool="kills", pool_lease=1.0)  # pyright: ignore[reportArgumentType]
    orchestrator = AsyncOrchestrator(config=config, workers=workers, tools=[pay, put])
    server = Server(Service(orchestrator, Settings(port=0), workers))
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    await server.serve()


if __name__ == "__main__":
    asyncio.run(main())
