"""Memory servers of the Model Context Protocol: notes outlive a run, and each tenant has a server of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("mcp")

from plait import AsyncOrchestrator, Config, Plan, Step, ToolCall, tool
from plait.core.tools.context import ToolContext
from plait.workers.tools.mcp import McpServer, RemoteTool
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key

PROGRAM = Path(__file__).parents[2] / "workers" / "tools" / "mcp_memory.py"
TEA = {"name": "Ann", "entityType": "person", "observations": ["drinks green tea"]}


def command(path: Path) -> str:
    return f"env MEMORY_FILE_PATH={path} {sys.executable} {PROGRAM}"


async def test_notes_in_a_memory_server_outlive_a_run_and_the_servers_process(tmp_path: Path) -> None:
    async def call(name: str, /, **args: Any) -> Any:
        plan = Plan(steps=(Step(name="a", op=ToolCall(tool=name, args=args)),), output="a")
        config = Config(mcp=(command(tmp_path / "notes.jsonl"),), journal="off")
        async with AsyncOrchestrator(workers=[], config=config) as orchestrator:
            return (await orchestrator.run("q", plan=plan)).value

    assert await call("search_nodes", query="tea") == {"entities": []}
    await call("create_entities", entities=[TEA])
    assert await call("search_nodes", query="tea") == {"entities": [TEA]}


async def test_each_tenant_has_a_memory_server_of_its_own(serve, tmp_path: Path) -> None:
    keys = {name: new_key() for name in ("ann", "bob", "eve")}
    tenants = tuple(Tenant(name=name, keys=(hashed(key),), tools=name != "eve") for name, key in keys.items())
    servers: dict[str, tuple[McpServer, dict[str, RemoteTool]]] = {}

    async def memory_of(tenant: str) -> dict[str, RemoteTool]:
        if tenant not in servers:
            memory = McpServer(command(tmp_path / f"{tenant}.jsonl"))
            servers[tenant] = memory, {each.name: each for each in await memory.open()}
        return servers[tenant][1]

    @tool(side_effects=True)
    async def keep(name: str, fact: str, ctx: ToolContext) -> Any:
        """Keep a fact for later runs."""
        memory = await memory_of(ctx.tenant)
        return await memory["create_entities"].fn(
            entities=[{"name": name, "entityType": "note", "observations": [fact]}]
        )

    @tool
    async def find(query: str, ctx: ToolContext) -> Any:
        """Find what was kept in earlier runs."""
        return await (await memory_of(ctx.tenant))["search_nodes"].fn(query=query)

    async with serve(tenants=tenants, tools=[keep, find]) as served, httpx.AsyncClient(timeout=60) as http:

        async def call(name: str, tool: str, /, **args: str) -> httpx.Response:
            plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": tool, "args": args}}], "output": "a"}
            body = {"model": "plait", "input": "q", "plait": {"plan": plan}}
            headers = {"authorization": f"Bearer {keys[name]}"}
            return await http.post(f"{served.base}/responses", json=body, headers=headers)

        assert (await call("ann", "keep", name="Ann", fact="a secret")).status_code == 200
        mine, other = await call("ann", "find", query="secret"), await call("bob", "find", query="secret")
        refused = await call("eve", "find", query="secret")
        for memory, _ in servers.values():
            await memory.close()
    assert "a secret" in mine.json()["output"][-1]["content"][0]["text"]
    assert "a secret" not in other.text
    assert refused.status_code == 403
