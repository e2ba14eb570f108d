"""The MCP package's client, to `plait mcp`: `base` is its address."""

from __future__ import annotations

from importlib.metadata import version

from expected import FINE
from mcp.client import Client

VERSION = version("mcp")


def text(result):
    assert not result.is_error, result.content
    return "".join(getattr(part, "text", "") for part in result.content)


async def check_tools_are_listed(base, _model):
    async with Client(base) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert {"solve", "vote", "run_plan", "start", "status", "cancel"} <= set(names)


async def check_solve(base, _model):
    async with Client(base) as client:
        assert FINE.within(text(await client.call_tool("solve", {"question": "hello"})))


async def check_solve_by_a_vote(base, _model):
    async with Client(base) as client:
        given = {"question": "SAY<answer: 42>", "planner": "sample:n=3"}
        assert "3 of 3 votes" in text(await client.call_tool("solve", given))


async def check_progress_is_told(base, _model):
    told = []

    async def progress(done, total, message):
        told.append(done)

    async with Client(base) as client:
        await client.call_tool("solve", {"question": "hello", "planner": "sample:n=3"}, progress_callback=progress)
    assert told and told == sorted(told)


async def check_vote(base, _model):
    async with Client(base) as client:
        assert "42" in text(await client.call_tool("vote", {"samples": ["answer: 42", "answer: 42", "answer: 41"]}))


async def check_a_planner_that_is_none(base, _model):
    async with Client(base) as client:
        result = await client.call_tool("solve", {"question": "hello", "planner": "nobody"})
    assert result.is_error and "nobody" in result.content[0].text


async def check_start_and_status(base, _model):
    async with Client(base) as client:
        run = (await client.call_tool("start", {"question": "hello"})).structured_content["run"]
        for _ in range(200):
            status = text(await client.call_tool("status", {"run": run}))
            if FINE.within(status):
                return
    raise AssertionError(status)
