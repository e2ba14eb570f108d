"""Tools that take any text, and choices of tools, in chat completions and responses."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from plait.workers.http import Http
from plait.workers.scripted import Reply
from tests.workers.http.fake_server import FakeServer

openai: Any = pytest.importorskip("openai")
ASK: Any = [{"role": "user", "content": "patch it"}]
PATCH: Any = {"name": "patch", "description": "Apply a patch."}
READ: Any = {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
TEXT = '*** Begin\n+print("hi")\n'
CALL = f"<tool_call>{json.dumps({'name': 'patch', 'arguments': {'input': TEXT}})}</tool_call>"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_calls_a_tool_with_any_text(serve: Any, stream: bool) -> None:
    tools: Any = [{"type": "custom", "custom": PATCH}, {"type": "function", "function": READ}]
    async with serve(Reply(when="patched", text="done"), Reply(text=CALL)) as served:
        chats, talk = served.client().chat.completions, list(ASK)
        if stream:
            chunks = [chunk async for chunk in await chats.create(model="q", messages=talk, tools=tools, stream=True)]
            (call,) = [each.to_dict() for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
            call.pop("index")
        else:
            said = (await chats.create(model="q", messages=talk, tools=tools)).choices[0]
            assert said.finish_reason == "tool_calls"
            call = said.message.tool_calls[0].to_dict()
        assert call == {"id": call["id"], "type": "custom", "custom": {"name": "patch", "input": TEXT}}
        talk += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "patched"},
        ]
        assert (await chats.create(model="q", messages=talk, tools=tools)).choices[0].message.content == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_calls_a_tool_with_any_text(serve: Any, stream: bool) -> None:
    tools: Any = [{"type": "custom", **PATCH}, {"type": "function", **READ}]
    async with serve(Reply(when="patched", text="done"), Reply(text=CALL)) as served:
        responses = served.client().responses
        if stream:
            events = [each async for each in await responses.create(model="q", input="go", tools=tools, stream=True)]
            done = [each for each in events if each.type == "response.custom_tool_call_input.done"]
            assert [each.input for each in done] == [TEXT]
            said = events[-1].response
        else:
            said = await responses.create(model="q", input="go", tools=tools)
        (call,) = said.output
        assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", TEXT)
        told: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}
        after = await responses.create(model="q", input=[told], previous_response_id=said.id, tools=tools)
        again = await responses.create(model="q", input=[{"role": "user", "content": "go"}, call.to_dict(), told])
        assert after.output_text == again.output_text == "done"


async def test_an_upstream_is_told_a_function_and_holds_it_to_the_expression(serve: Any) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
    tool: Any = {"type": "custom", "custom": {**PATCH, "format": grammar}}
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        raw = served.client().chat.completions.with_raw_response
        answer = await raw.create(model="fake-model", messages=ASK, tools=[tool])
        assert "x-plait-ignored" not in answer.headers
        (sent,) = fake.asked()[-1]["tools"]
        assert sent["type"] == "function" and sent["function"]["name"] == "patch"
        assert "[a-z]+" in sent["function"]["description"]
        assert sent["function"]["parameters"]["properties"]["input"]["pattern"] == "^(?:[a-z]+)$"
        lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}
        tool["custom"]["format"] = lark
        answer = await raw.create(model="fake-model", messages=ASK, tools=[tool])
        assert answer.headers["x-plait-ignored"] == "tools.format", "the model is only told of it"
        assert 'start: "a"' in fake.asked()[-1]["tools"][0]["function"]["description"]


async def test_an_upstream_is_told_a_function_as_the_client_describes_it(serve: Any) -> None:
    bare = {"name": "bare", "parameters": {"type": "object", "properties": {}}}
    read = {**READ, "description": "Read.", "strict": True}
    tools: Any = [{"type": "function", "function": function} for function in (read, bare)]
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        client = served.client()
        await client.chat.completions.create(model="fake-model", messages=ASK, tools=tools)
        assert fake.asked()[-1]["tools"] == tools
        flat = [{"type": "function", **tool["function"]} for tool in tools]
        await client.responses.create(model="fake-model", input="go", tools=flat)
        assert fake.asked()[-1]["tools"] == tools


async def test_parts_of_text_are_a_line_each(serve: Any) -> None:
    parts = ["one", "two"]
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        client = served.client()
        talk: Any = [{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}]
        await client.chat.completions.create(model="fake-model", messages=talk)
        assert fake.asked()[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]
        given: Any = [{"role": "user", "content": [{"type": "input_text", "text": part} for part in parts]}]
        await client.responses.create(model="fake-model", input=given)
        assert fake.asked()[-1]["messages"] == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_tools_that_are_allowed_are_offered(serve: Any, mode: str) -> None:
    named: Any = [{"type": "function", "function": {"name": "read"}}]
    tools: Any = [{"type": "custom", "custom": PATCH}, {"type": "function", "function": READ}]
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        client = served.client()
        with_choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        with contextlib.suppress(openai.InternalServerError):  # the fake calls nothing
            await client.chat.completions.create(model="fake-model", messages=ASK, tools=tools, tool_choice=with_choice)
        sent = fake.asked()[-1]
        assert [each["function"]["name"] for each in sent["tools"]] == ["read"] and sent["tool_choice"] == mode


async def test_a_response_has_allowed_tools_too(serve: Any) -> None:
    tools: Any = [{"type": "custom", **PATCH}, {"type": "function", **READ}]
    choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "patch"}]}
    async with FakeServer() as fake, serve(workers=[Http(fake.url)]) as served:
        said = await served.client().responses.create(model="fake-model", input="go", tools=tools, tool_choice=choice)
        assert [each["function"]["name"] for each in fake.asked()[-1]["tools"]] == ["patch"]
        assert said.tool_choice.mode == "auto" and [each.type for each in said.tools] == ["custom", "function"]


async def test_a_tool_that_has_to_be_called_may_be_custom(serve: Any) -> None:
    async with serve(CALL) as served:
        said = await served.client().chat.completions.create(
            model="q", messages=ASK, tools=[{"type": "custom", "custom": PATCH}],
            tool_choice={"type": "custom", "custom": {"name": "patch"}},
        )  # fmt: skip
        assert said.choices[0].message.tool_calls[0].custom.input == TEXT


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {**PATCH, "format": {"type": "grammar"}}}]}, "tools[0].format"),
        ({"tools": [{"type": "custom", "custom": {**PATCH, "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": "("}}}}]}, "tools[0].format"),
        ({"tools": [{"type": "custom", "custom": PATCH}] * 2}, "tools"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": "nobody"}}]}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "nobody"}}}, "tool_choice"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_named(serve: Any, fields: Any, param: str) -> None:
    async with serve() as served:
        body = {"tools": [{"type": "function", "function": READ}], **fields}
        with pytest.raises(openai.BadRequestError) as error:
            await served.client().chat.completions.create(model="q", messages=ASK, **body)
        assert error.value.param == param and error.value.code


async def test_a_response_goes_on_from_a_message_that_is_not_whole(serve: Any) -> None:
    begun = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "The answer is"}]}
    async with serve(Reply(when=r"The answer is\Z", text=" 42"), Reply(text="anew")) as served:
        responses = served.client().responses
        for status, text in (("incomplete", " 42"), ("completed", "anew")):
            asked: Any = [{"role": "user", "content": "6 × 7?"}, {**begun, "status": status}]
            assert (await responses.create(model="q", input=asked)).output_text == text
