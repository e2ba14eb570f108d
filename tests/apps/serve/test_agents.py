"""A coding agent of each family does ten tasks through `plait/auto`, and nothing but its address is another."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from plait.workers.scripted import Reply

openai: Any = pytest.importorskip("openai")
MODEL = "plait/auto"
TURNS = 6
TOOLS = {
    "read": {"path": {"type": "string"}},
    "write": {"path": {"type": "string"}, "text": {"type": "string"}},
}
SCHEMAS = {name: {"type": "object", "properties": fields, "required": list(fields)} for name, fields in TOOLS.items()}
TASKS = {f"task{n}.py": (f"def f():\n    return {n}\n", f"def f():\n    return {n + 100}\n") for n in range(10)}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def replies() -> list[Reply]:
    """Return what a model says that mends a file: it reads, writes, reads again what it wrote, and tells the user."""
    said: list[Reply] = []
    for path, (before, after) in TASKS.items():
        asked, was, now = rf"Mend {path}\b", before.splitlines()[1], after.splitlines()[1]
        said += [
            Reply(when=rf"(?s){asked}.*Let me look again.*{re.escape(now)}", text=f"{path} is mended."),
            Reply(when=rf"(?s){asked}.*wrote {path}", text="Let me look again." + call("read", path=path)),
            Reply(when=rf"(?s){asked}.*{re.escape(was)}", text=call("write", path=path, text=after)),
            Reply(when=asked, text="First I read it. " + call("read", path=path)),
        ]
    return said


class Workbench:
    """The files of an agent, and its tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path, (before, _) in TASKS.items():
            (folder / path).write_text(before)

    def do(self, name: str, arguments: dict[str, str]) -> str:
        path = self.folder / arguments["path"]
        if name == "read":
            return path.read_text()
        path.write_text(arguments["text"])
        return f"wrote {path.name}"


async def by_chat(served: Any, bench: Workbench, asked: str) -> str:
    tools = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in SCHEMAS.items()]
    messages: list[Any] = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": asked}]
    client = served.client()
    for _ in range(TURNS):
        async with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            said = (await stream.get_final_completion()).choices[0]
        messages.append(said.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if said.finish_reason != "tool_calls":
            return said.message.content
        for each in said.message.tool_calls:
            done = bench.do(each.function.name, json.loads(each.function.arguments))
            messages.append({"role": "tool", "tool_call_id": each.id, "content": done})
    raise AssertionError("it does not end")


async def by_responses(served: Any, bench: Workbench, asked: str) -> str:
    tools = [{"type": "function", "name": name, "parameters": each, "strict": False} for name, each in SCHEMAS.items()]
    given: list[Any] = [{"role": "user", "content": asked}]
    client, before = served.client(), None
    for _ in range(TURNS):
        said = await client.responses.create(
            model=MODEL, instructions="You mend code.", input=given, tools=tools, previous_response_id=before
        )
        calls = [item for item in said.output if item.type == "function_call"]
        if not calls:
            return said.output_text
        before = said.id
        given = [
            {"type": "function_call_output", "call_id": each.call_id,
             "output": bench.do(each.name, json.loads(each.arguments))} for each in calls
        ]  # fmt: skip
    raise AssertionError("it does not end")


async def by_messages(served: Any, bench: Workbench, asked: str) -> str:
    anthropic: Any = pytest.importorskip("anthropic")
    tools = [{"name": name, "input_schema": each} for name, each in SCHEMAS.items()]
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": asked}]}]
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, max_retries=0) as client:
        for _ in range(TURNS):
            async with client.messages.stream(
                model=MODEL, max_tokens=500, system="You mend code.", messages=messages, tools=tools
            ) as stream:
                said = await stream.get_final_message()
            messages.append({"role": "assistant", "content": said.content})
            if said.stop_reason != "tool_use":
                return said.content[0].text
            done = [
                {"type": "tool_result", "tool_use_id": each.id, "content": bench.do(each.name, each.input)}
                for each in said.content if each.type == "tool_use"
            ]  # fmt: skip
            messages.append({"role": "user", "content": [*done, {"type": "text", "text": "(go on)"}]})
    raise AssertionError("it does not end")


@pytest.mark.parametrize("agent", [by_chat, by_responses, by_messages])
async def test_a_coding_agent_does_its_tasks(
    serve: Any, tmp_path: Path, agent: Callable[[Any, Workbench, str], Awaitable[str]]
) -> None:
    bench = Workbench(tmp_path)
    async with serve(*replies()) as served:
        for path in TASKS:
            assert await agent(served, bench, f"Mend {path}, please.") == f"{path} is mended."
    assert {path: (tmp_path / path).read_text() for path in TASKS} == {
        path: after for path, (_, after) in TASKS.items()
    }
