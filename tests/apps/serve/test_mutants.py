"""Requests that are not quite sound, to every door, and innocents beside them who notice nothing.

Hundreds of them here; `python -m tests.counts doors mcp` goes on to a hundred thousand and ten thousand.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.serve.mutants import MCP, SOUND, case, mutant
from tests.apps.serve.processes import child, serving, worked

BOUND = 0.05
"""Seconds of the loop until an innocent is answered, as the 99th percentile; the mutants beside it are in it."""
AT_ONCE = 2
"""Mutants under way beside an innocent; over MCP one, for in a session no two calls may have one id."""
GROWS = 24.0
"""MiB by which the server may be larger at the end than after a fifth: what it keeps of past runs is full by then."""
JSON = {"content-type": "application/json"}
TOLD = ("planner-error", "no_tool_call", "no-worker", "overloaded")
"""Codes of runs that failed, in words: their answers have a status of 500 or more, as those of failed models have."""
BUG = r"internal_error|Traceback|bug of plait|(?<!Planner)(?<!Engine)(?<!Tool)(?<!Worker)Error: "
Send = Callable[[httpx.AsyncClient, int], Awaitable[str]]
"""Sends the mutant of a number; returns the kind of the answer."""


def mib(pid: int) -> float:
    """Memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def beside(
    pid: int, url: str, numbers: range, send: Send, innocent: Send, at_once: int = AT_ONCE
) -> tuple[Counter[str], list[float]]:
    """Send mutants, a few at once, and innocents one after another. Return the answers by kind, and the seconds of the
    loop of the innocents."""
    left, kinds, loop, sizes = iter(numbers), Counter[str](), list[float](), list[float]()
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:

        async def hostile() -> None:
            for number in left:
                kinds[await send(http, number)] += 1
                if number % max(1, len(numbers) // 5) == 0:
                    sizes.append(mib(pid))

        tasks = [asyncio.create_task(hostile()) for _ in range(at_once)]
        number = 0
        while not all(task.done() for task in tasks):
            before = worked(pid)
            assert await innocent(http, number) == "right", number
            loop.append(worked(pid) - before)
            number += 1
        await asyncio.gather(*tasks)
    sys.stdout.write(f"{kinds}\ninnocents {len(loop)}, p99 {part(loop, 0.99):.3f} s, longest {max(loop):.3f} s\n")
    sys.stdout.write(f"MiB after each fifth: {[round(size) for size in (*sizes, mib(pid))]}\n")
    assert len(sizes) < 3 or mib(pid) - sizes[1] < GROWS, sizes
    return kinds, loop


def part(values: list[float], share: float) -> float:
    """A percentile."""
    return sorted(values)[int((len(values) - 1) * share)]


# -- plait serve -------------------------------------------------------------------------------------------------------


async def chats(http: httpx.AsyncClient, number: int) -> str:
    """Ask a chat to say a word, and see that it is that."""
    words = f"word-{number}"
    body = {"model": "q", "messages": [{"role": "user", "content": f"SAY:1:{words}:YAS"}]}
    said = await http.post("/v1/chat/completions", json=body)
    assert said.status_code == 200, said.text
    return "right" if said.json()["choices"][0]["message"]["content"] == words else said.text


async def served(tmp_path: Path, numbers: range) -> tuple[Counter[str], list[float]]:
    """Mutants of every door of a server that writes a journal."""
    async with serving(tmp_path, str(tmp_path / "runs.plait")) as (server, url, told):
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            doors = (await http.get("/openapi.json")).json()["paths"]
            posted = {path for path, methods in doors.items() if "post" in methods}
            assert not (missing := posted - SOUND.keys()), f"say in mutants.py what is sound there: {missing}"
            waits = {"model": "q", "input": "WAIT:600:YAS", "background": True}
            runs = [(await http.post("/v1/responses", json=waits)).json()["id"].removeprefix("resp_") for _ in "ab"]
            for at in range(20):  # what is loaded the first time
                await chats(http, at)

        async def send(http: httpx.AsyncClient, number: int) -> str:
            path, content = case(number, runs)
            began = time.monotonic()
            said = await http.post(path, content=content, headers=JSON)
            about = f"{number}: {path} {content[:2_000]!r} -> {said.status_code} {said.text[:500]}"
            assert not re.search(BUG, said.text), about
            assert time.monotonic() - began < 60, about
            code = said.json()["error"]["code"] if said.status_code >= 500 else ""
            assert said.status_code < 500 or code in TOLD, about
            return f"{said.status_code} {code}".strip()

        found = await beside(server.pid, url, numbers, send, chats)
        assert server.returncode is None
        mistakes = [line for line in told if "internal error" in line or "Traceback" in line or "broke down" in line]
        assert not mistakes, told[-40:]
    return found


async def test_mutants_disturb_nobody(tmp_path: Path) -> None:
    kinds, loop = await served(tmp_path, range(600))
    assert kinds["200"] > 90 and kinds["400"] > 90, kinds  # some are sound after all
    assert part(loop, 0.99) <= BOUND


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("chat/completions", [{"role": "user", "content": [{"type": ["image_url"], "image_url": 1}]}]),
        ("chat/completions", [{"role": "user", "content": [{"type": {"a": 1}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": ""}]}]),
    ],
)
async def test_what_mutants_found_is_refused_in_words(shared, path: str, messages: Any) -> None:
    async with httpx.AsyncClient() as http:
        said = await http.post(f"{shared.base}/{path}", json={"model": "q", "messages": messages, "max_tokens": 5})
    assert said.status_code == 400 and "mistake" not in said.text, said.text


# -- plait mcp ---------------------------------------------------------------------------------------------------------

ACCEPT = {**JSON, "accept": "application/json, text/event-stream"}
ERROR = '"isError":true'
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
HELLO = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": CLIENT}


async def asked_over_mcp(tmp_path: Path, numbers: range) -> tuple[Counter[str], list[float]]:
    """Mutants of calls of `plait mcp --http`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    upstream = str(Path(__file__).with_name("upstream_child.py"))
    async with child(upstream, cwd=tmp_path, stream="stdout") as (_, model, _):
        there = ("--http", f"127.0.0.1:{port}", "--base-url", f"http://127.0.0.1:{model}/v1", "--journal", "off")
        mcp = child("-m", "plait", "mcp", *there, cwd=tmp_path, stream="stderr", speaks=False)
        async with mcp as (server, _, told):
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                hostile, innocent = [
                    {**ACCEPT, "mcp-session-id": await greeted(http), "mcp-protocol-version": "2025-06-18"}
                    for _ in "ab"
                ]

            async def send(http: httpx.AsyncClient, number: int) -> str:
                content = mutant(number, MCP, MCP)
                said = await http.post("/mcp", content=content, headers=hostile)
                about = f"{number}: {content[:2_000]!r} -> {said.status_code} {said.text[:500]}"
                assert said.status_code < 500 and "Traceback" not in said.text and "-32603" not in said.text, about
                return f"{said.status_code} {ERROR in said.text}"

            async def votes(http: httpx.AsyncClient, number: int) -> str:
                call = {"name": "vote", "arguments": {"samples": [str(number), "x", str(number)]}}
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
                said = await http.post("/mcp", json=body, headers=innocent)
                assert said.status_code == 200, said.text
                return "right" if f'"answer":"{number}"' in said.text.replace("\\", "").replace(" ", "") else said.text

            async with httpx.AsyncClient(base_url=url, timeout=60) as http:  # what is loaded the first time
                for body in MCP:
                    await http.post("/mcp", json=body, headers=hostile)

            found = await beside(server.pid, url, numbers, send, votes, 1)
            assert server.returncode is None
            assert not [line for line in told if "Traceback" in line or "broke down" in line], told[-40:]
    return found


async def greeted(http: httpx.AsyncClient) -> str:
    """Begin a session with an MCP server, once it listens; return its id."""
    while True:
        try:
            said = await http.post("/mcp", json=HELLO, headers=ACCEPT)
            break
        except httpx.ConnectError:
            await asyncio.sleep(0.05)
    session = said.headers["mcp-session-id"]
    hello = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await http.post("/mcp", json=hello, headers={**ACCEPT, "mcp-session-id": session})
    return session


async def test_mutants_over_mcp_disturb_nobody(tmp_path: Path) -> None:
    kinds, loop = await asked_over_mcp(tmp_path, range(150))
    assert len(kinds) >= 2, kinds
    assert part(loop, 0.99) <= BOUND
