"""Tools of types other than functions: namespaces, tools that another server runs, and Anthropic's typed tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from plait.core.tools.calls import call_text
from plait.workers.scripted import Reply, Scripted

SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {"task": {}}}}
CODEX = [
    {"type": "function", "name": "shell", "parameters": {"type": "object"}},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [SPAWN, {**SPAWN, "name": "wait"}],
    },
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
]
"""The types of the tools that Codex offers as it is installed."""
CALL = call_text("agents__spawn", '{"task": "look"}')


class Recording(Scripted):
    """Keeps the model calls that it gets."""

    def __init__(self, text: str) -> None:
        super().__init__([Reply(text=text)])
        self.asked: list[Any] = []

    def run(self, job: Any) -> Any:
        self.asked.append(job.op)
        return super().run(job)


async def post(served: Any, path: str, body: Any, status: int = 200) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(f"{served.url}{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_namespace_is_flattened_and_named_back(serve: Any, stream: bool) -> None:
    async with serve(workers=[Recording(CALL)]) as served:
        body = {"model": "q", "input": "spawn", "tools": CODEX, "stream": stream}
        answer = await post(served, "/v1/responses", body)
        offered = [tool.name for tool in served.worker.asked[0].tools]
    assert offered == ["shell", "agents__spawn", "agents__wait", "patch"]
    assert answer.headers["x-plait-ignored"] == "tools.web_search, tools.local_shell"
    whole = json.loads(answer.text.rpartition("data: ")[2])["response"] if stream else answer.json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "spawn", "agents")
    assert json.loads(item["arguments"]) == {"task": "look"}
    assert whole["tools"][1]["tools"][0].items() >= SPAWN.items(), "the tools are echoed as they came"


async def test_a_history_of_namespaces_and_hosted_tools_is_read(serve: Any) -> None:
    call = {"type": "function_call", "call_id": "c1", "namespace": "agents", "name": "spawn", "arguments": "{}"}
    items = [
        {"role": "user", "content": "spawn"}, {"type": "web_search_call", "id": "w", "status": "completed"}, call,
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]  # fmt: skip
    async with serve(workers=[Recording("fine")]) as served:
        await post(served, "/v1/responses", {"model": "q", "input": items, "tools": CODEX})
        (think,) = served.worker.asked
    assert [call.function.name for message in think.messages for call in message.tool_calls] == ["agents__spawn"]


async def test_hosted_tools_are_refused_where_the_choice_needs_one(serve: Any) -> None:
    async with serve() as served:
        for choice in ({"type": "web_search"}, "required"):
            body = {"model": "q", "input": "x", "tools": CODEX[3:], "tool_choice": choice}
            error = (await post(served, "/v1/responses", body, 400)).json()["error"]
            assert error["param"] == "tool_choice"
    async with serve(strict=True) as served:
        error = (await post(served, "/v1/responses", {"model": "q", "input": "x", "tools": CODEX}, 400)).json()["error"]
        assert "web_search" in error["message"]


async def test_anthropics_typed_tools_are_passed_on(serve: Any) -> None:
    typed = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    used = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}]},
    ]  # fmt: skip
    async with serve(workers=[Recording(call_text("bash", '{"command": "cat a.py"}'))]) as served:
        body = {"model": "q", "max_tokens": 99, "messages": used, "tools": typed}
        answer = await post(served, "/v1/messages", body)
        (think,) = served.worker.asked
    assert [tool.name for tool in think.tools] == ["bash", "str_replace_based_edit_tool", "memory"]
    assert "command" in think.tools[0].parameters["properties"]
    assert answer.headers["x-plait-ignored"] == "tools.web_search_20250305"
    assert answer.json()["content"][0]["input"] == {"command": "cat a.py"}
