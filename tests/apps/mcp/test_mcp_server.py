"""`plait mcp`, called by the client of the `mcp` package."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from mcp.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    Request,
    RequestParams,
    Result,
)
from pydantic import ConfigDict

from plait import AsyncOrchestrator, tool
from plait.core.tools.context import ToolContext
from plait.runtime.client.config import Config
from plait.runtime.client.handle import Handle
from plait.runtime.driver import garbage_collection
from plait.workers.scripted import Reply, Scripted
from plait_server.mcp import command
from plait_server.mcp.jobs import Jobs
from plait_server.mcp.server import IDENTIFIER, Tasks, build
from plait_server.settings import Settings

MODERN = "2026-07-28"
SLOW = Reply(when="slow", text="word " * 2000, tokens_per_second=20)


@tool
async def permit(what: str, ctx: ToolContext) -> str:
    """Ask a person."""
    return f"{what}: {await ctx.ask(f'May I {what}?', choices=['yes', 'no'])}"


ASKING = {"steps": [{"name": "a", "op": {"kind": "call", "tool": "permit", "args": {"what": "sing"}}}], "output": "a"}


class _Jobs(Jobs):
    """Jobs that keep what was started."""

    def __init__(self, orchestrator: AsyncOrchestrator, tokens: int | None = None) -> None:
        super().__init__(orchestrator, tokens)
        self.started: list[Handle] = []

    async def solve(self, question: str, planner: str = "", n: int = 0, max_tokens: int = 0) -> Handle:
        self.started.append(await super().solve(question, planner, n, max_tokens))
        return self.started[-1]

    async def run_plan(self, plan: dict[str, Any], question: str = "", max_tokens: int = 0) -> Handle:
        self.started.append(await super().run_plan(plan, question, max_tokens))
        return self.started[-1]


@contextlib.asynccontextmanager
async def _jobs(tokens: int | None = None) -> AsyncIterator[_Jobs]:
    worker = Scripted([SLOW, Reply(text="The answer is 42.")])
    async with AsyncOrchestrator(workers=[worker], tools=[permit], journal="off", on_ask="later") as plait:
        yield _Jobs(plait, tokens)


def _said(result: CallToolResult) -> Any:
    assert not result.is_error, result
    return result.structured_content


def _refused(result: CallToolResult) -> str:
    assert result.is_error
    return result.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_solve_and_vote(mode: str) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with _jobs() as jobs, Client(build(jobs), mode=mode) as client:
        names = {each.name for each in (await client.list_tools()).tools}
        assert names == {"solve", "run_plan", "vote", "start", "status", "reply", "cancel"}
        answer = _said(
            await client.call_tool(
                "solve", {"question": "six by seven?", "planner": "sample:n=3"}, progress_callback=progress
            )
        )
        assert answer["status"] == "done" and "42" in answer["answer"] and answer["usage"]["completion"] > 0
        assert [done for done, *_ in told] == sorted(done for done, *_ in told) and told[-1][0] == told[-1][1] == 4
        voted = _said(await client.call_tool("vote", {"samples": ["7", "8", "7"]}))
        assert voted["answer"] == "7" and voted["total_tokens"] == 0


async def test_each_tool_declares_the_fields_of_its_result() -> None:
    async with _jobs() as jobs, Client(build(jobs), mode=MODERN) as client:
        forms: dict[str, Any] = {each.name: each.output_schema for each in (await client.list_tools()).tools}
        ended = _said(await client.call_tool("solve", {"question": "six by seven?"}))
        (handle,) = jobs.started
        assert ended == json.loads(json.dumps((await handle).summary())), "no field is lost"
        status = _said(await client.call_tool("status", {"run": ended["run"]}))
    for form in forms.values():
        assert ended.keys() <= form["properties"].keys()
        assert form["properties"]["total_tokens"]["type"] == "integer"
    for name in ("start", "status", "reply", "cancel"):
        assert status.keys() < forms[name]["properties"].keys()
        assert forms[name]["properties"]["state"]["enum"] == ["running", "asking", "ended"]


async def test_a_client_that_goes_away_gives_its_run_up() -> None:
    async with _jobs() as jobs, Client(build(jobs), mode=MODERN) as client:
        call = asyncio.create_task(client.call_tool("solve", {"question": "slow"}))
        while not jobs.started:
            await asyncio.sleep(0.01)
        (handle,) = jobs.started
        call.cancel()
        assert (await asyncio.wait_for(asyncio.shield(handle.finished), 300)).status == "cancelled"


async def test_a_run_in_the_background() -> None:
    async with _jobs() as jobs, Client(build(jobs), mode=MODERN) as client:
        run = _said(await client.call_tool("start", {"question": "slow"}))["run"]
        assert _said(await client.call_tool("status", {"run": run}))["state"] == "running"
        ended = _said(await client.call_tool("cancel", {"run": run}))
        assert ended["state"] == "ended" and ended["status"] == "cancelled"
        assert "no run 'x'" in _refused(await client.call_tool("status", {"run": "x"}))


@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("says", ["yes", None])
async def test_a_question_is_put_to_the_clients_user(mode: str, says: str | None) -> None:
    asked: list[Any] = []

    async def elicited(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept", content={"value": says}) if says else ElicitResult(action="decline")

    async with _jobs() as jobs, Client(build(jobs), mode=mode, elicitation_callback=elicited) as client:
        result = await client.call_tool("run_plan", {"plan": ASKING})
        assert asked[0].message == "May I sing?"
        assert asked[0].requested_schema["properties"]["value"]["enum"] == ["yes", "no"]
        if says:
            assert _said(result)["answer"] == "sing: yes"
        else:
            assert "given up" in _refused(result)
        (handle,) = jobs.started
        assert (await handle.finished).status == ("done" if says else "cancelled")


async def test_a_client_that_can_ask_nobody_is_told_what_to_do() -> None:
    async with _jobs() as jobs, Client(build(jobs), mode="legacy") as client:
        assert "use `start`" in _refused(await client.call_tool("run_plan", {"plan": ASKING}))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("solve", {"question": " "}, "the question is empty"),
        ("solve", {"question": "q", "planner": "smaple"}, "sample"),
        ("solve", {"question": "q", "planner": "os:system"}, "allow"),
        ("solve", {"question": "q", "planner": "sample", "n": -1}, "n"),
        ("solve", {"question": "q", "max_tokens": -1}, "must be at least 1, got -1"),
        ("vote", {"samples": ["one"]}, "between 2 and 1,000"),
        ("vote", {"samples": ["1", "1"], "merge": "os:system"}, "allow"),
        ("run_plan", {"plan": {"steps": 3}}, "steps"),
        ("reply", {"run": "x", "question": "y", "value": 1}, "no run"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(name: str, arguments: dict[str, Any], words: str) -> None:
    async with _jobs() as jobs, Client(build(jobs), mode=MODERN) as client:
        said = _refused(await client.call_tool(name, arguments))
        assert words in said and "Traceback" not in said and "pydantic" not in said
        assert "42" in _said(await client.call_tool("solve", {"question": "still there?"}))["answer"]


async def test_the_servers_limit_holds_whatever_a_client_asks_for() -> None:
    async with _jobs(tokens=10) as jobs, Client(build(jobs), mode=MODERN) as client:
        answer = _said(await client.call_tool("solve", {"question": "slow", "max_tokens": 1000}))
        assert answer["total_tokens"] <= 10


class _Task(Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class _Tasks(ClientExtension):
    """What a client of the Tasks extension does: ask until the task has ended, and answer what it asks."""

    identifier = IDENTIFIER

    def __init__(self) -> None:
        self.seen: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=_Task, resolve=self._resolve)]

    async def _resolve(self, task: _Task, ctx: ClaimContext) -> CallToolResult:
        now: dict[str, Any] = task.model_dump(by_alias=True)
        while True:
            self.seen.append(now["status"])
            if now["status"] in ("completed", "failed", "cancelled"):
                return CallToolResult.model_validate(now.get("result") or {"content": [], "isError": True})
            if now["status"] == "input_required":
                answers = {key: {"action": "accept", "content": {"value": "no"}} for key in now["inputRequests"]}
                await _send(ctx, "tasks/update", taskId=now["taskId"], inputResponses=answers)
            await asyncio.sleep(0.02)
            now = await _send(ctx, "tasks/get", taskId=now["taskId"])


async def _send(ctx: ClaimContext, method: str, **params: Any) -> dict[str, Any]:
    class Params(RequestParams):
        model_config = ConfigDict(extra="allow")

    class Anything(Result):
        model_config = ConfigDict(extra="allow")

    request: Any = Request[Any, Any](method=method, params=Params.model_validate(params))
    return (await ctx.session.send_request(request, Anything)).model_dump(by_alias=True)


async def test_a_client_of_the_tasks_extension_gets_a_task() -> None:
    tasks = _Tasks()
    async with _jobs() as jobs, Client(build(jobs), mode=MODERN, extensions=[tasks]) as client:
        assert _said(await client.call_tool("run_plan", {"plan": ASKING}))["answer"] == "sing: no"
        assert tasks.seen[0] in ("working", "input_required") and "input_required" in tasks.seen
        assert tasks.seen[-1] == "completed"
        assert "the question is empty" in _refused(await client.call_tool("solve", {"question": ""}))


async def test_the_command_over_standard_streams(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": "The answer is 42."}]}))
    words = ["-m", "plait", "mcp", "--script", str(script), "--journal", "off"]
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ)))
    ) as client:
        assert "42" in _said(await client.call_tool("solve", {"question": "six by seven?"}))["answer"]


async def test_a_client_of_an_older_protocol_that_declares_tasks_gets_the_answer() -> None:
    """As the MCP inspector does: a task is no result that its protocol has."""
    session = SimpleNamespace(client_capabilities=SimpleNamespace(extensions={IDENTIFIER: {}}))
    params = CallToolRequestParams(name="solve", arguments={"question": "2 + 2?"})

    async def call(_: object) -> str:
        return "as any"

    async with _jobs() as jobs:
        for version, task in (("2025-06-18", False), (MODERN, True)):
            ctx: Any = SimpleNamespace(session=session, protocol_version=version)
            made = await Tasks(jobs).intercept_tool_call(params, ctx, cast("Any", call))
            assert (made != "as any") == task, version
        (handle,) = jobs.started
        await handle


@pytest.mark.parametrize("access", [None, Settings(port=0)])
async def test_what_the_server_is_made_of_is_left_out_of_collections(
    access: Settings | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look through all of it took 0.1 s of the loop, in which nobody was answered."""
    frozen: list[int] = []

    async def serves(*_: object) -> None:
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr("plait_server.mcp.server.build", lambda *_: SimpleNamespace(run_stdio_async=serves))
    monkeypatch.setattr("plait_server.mcp.http.serve_http", serves)
    monkeypatch.setattr(garbage_collection, "_settled", False)
    (script := tmp_path / "script.json").write_text('{"replies": [{"text": "fine"}]}')
    try:
        await command._serve(Config.load(script=script, journal="off"), access)
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
