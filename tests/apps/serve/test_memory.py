"""Memory between runs belongs to the tenant that asked for the run."""

from __future__ import annotations

import httpx

from plait_research.tools.memory import Memory
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key


async def test_a_tenant_reads_and_deletes_only_its_own_notes(serve, tmp_path):
    keys = {name: new_key() for name in ("ann", "bob", "eve")}
    tenants = tuple(Tenant(name=name, keys=(hashed(key),), tools=name != "eve") for name, key in keys.items())
    memory = Memory(tmp_path / "notes.sqlite")

    async with serve(tenants=tenants, tools=memory.tools()) as served, httpx.AsyncClient(timeout=30) as http:

        async def call(name: str, tool: str, **args: str) -> httpx.Response:
            plan = {"steps": [{"name": "a", "op": {"kind": "call", "tool": tool, "args": args}}], "output": "a"}
            body = {"model": "plait", "input": "q", "plait": {"plan": plan}}
            headers = {"authorization": f"Bearer {keys[name]}"}
            return await http.post(f"{served.base}/responses", json=body, headers=headers)

        assert (await call("ann", "write_note", key="k", text="Ann's secret")).status_code == 200
        for tool, args in (("read_note", {"key": "k"}), ("search_notes", {"query": "secret"})):
            other = await call("bob", tool, **args)
            assert "secret" not in other.text
        await call("bob", "delete_note", key="k")
        await call("bob", "write_note", key="k", text="Bob's own")
        mine = await call("ann", "read_note", key="k")
        refused = await call("eve", "search_notes", query="")
    assert mine.json()["output"][-1]["content"][0]["text"] == "Ann's secret"
    assert refused.status_code == 403
    assert memory.load("ann") == {"k": "Ann's secret"}
    assert memory.load("bob") == {"k": "Bob's own"}
    assert memory.load("") == {}
