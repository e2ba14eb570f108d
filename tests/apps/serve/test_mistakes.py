"""Mistakes of clients, made by a generator at every door: each is 4xx with a code and a message, and none is 500."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

ASK: Any = [{"role": "user", "content": "6 × 7?"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "description": "Do it.", "parameters": {"type": "object", "properties": {"a": {}}}}
CHAT: dict[str, Any] = {
    "model": "q", "messages": [*ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                               {"role": "tool", "tool_call_id": "c", "content": "42"}],
    "tools": [{"type": "function", "function": FUNCTION},
              {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
    "n": 2, "stop": ["x"], "temperature": 0.5, "top_p": 0.9, "seed": 1, "logit_bias": {"5": 1}, "store": True,
    "metadata": {"a": "b"}, "max_tokens": 5, "response_format": {"type": "text"},
    "plait": {"planner": "sample:n=2", "budget": {"tokens": 50}, "steps": True, "policies": ["consensus"]},
}  # fmt: skip
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT,
        {"model": "q", "messages": [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "text", "text": "here"}]}],
         "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}},
        {"model": "q", "messages": ASK, "structured_outputs": {"regex": "[a-z]+"}, "stream": True,
         "stream_options": {"include_usage": True}},
        {"model": "q", "messages": ASK, "plait": {"plan": {
            "steps": [{"name": "a", "op": {"kind": "think", "prompt": "x"}}], "output": "a"}}},
    ],
    "/v1/completions": [{"model": "q", "prompt": ["a", "b"], "n": 1, "max_tokens": 4, "echo": True, "stop": "x"}],
    "/v1/messages": [{
        "model": "q", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [*ASK, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "42"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 4}, "stop_sequences": ["x"],
    }],
    "/v1/messages/count_tokens": [{"model": "q", "messages": ASK, "system": "Be brief."}],
    "/v1/responses": [{
        "model": "q", "instructions": "Be brief.", "text": {"format": {"type": "text"}},
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                  {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "x"},
                  {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}],
        "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "g", "format": {
            "type": "grammar", "syntax": "regex", "definition": "a+"}}],
        "reasoning": {"effort": "low"}, "include": [], "max_output_tokens": 9, "store": True,
    }],
    "/v1/responses/input_tokens": [{"model": "q", "input": "hi"}],
    "/v1/responses/compact": [{"model": "q", "input": "hi"}],
    "/agui": [{
        "threadId": "t", "runId": "r", "state": {}, "context": [{"description": "who", "value": "Ann"}],
        "messages": [{"id": "1", "role": "user", "content": "hi"},
                     {"id": "2", "role": "assistant", "toolCalls": [CALL]},
                     {"id": "3", "role": "tool", "toolCallId": "c", "content": "42"}],
        "tools": [FUNCTION], "forwardedProps": {"model": "q", "temperature": 0.5},
    }, {"threadId": "t", "runId": "r", "messages": [], "resume": [
        {"interruptId": "nobody:s?1", "status": "resolved", "payload": True}]}],
    "/runs": [{"text": "hi", "planner": "sample:n=2", "model": "q"}],
    "/v1/chat/completions/nobody": [{"metadata": {"a": "b"}}],
    "/runs/nobody/cancel": [{"reason": "enough"}],
    "/runs/nobody/feedback": [{"right": 0.5}],
}  # fmt: skip
WRONG: list[Any] = [
    None, True, 0, -1, 3.5, 10**30, 1e308, "", " ", "nonsense", "\ud800", "\x00", "a" * 3000, [], [[]], [None], {},
    {"": {}},
    {"type": "nonsense"}, {"type": None}, [{"type": "text"}], [{"role": "user"}], {"$ref": "#/x"},
    ["(", "[", "a{9999}"],
    {"kind": "think"}, "plait/nobody", "plait/sample:n=-1", "plait/sample:n=x+nobody", "pkg.mod:Cls", "../../etc",
]  # fmt: skip
MODELS = ("planner-error", "no_tool_call")
"""What is no mistake of the client's: the model does not write what it has to."""
EACH = 60
"""Mistakes made of one body."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something stands in a body."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def broken(body: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """Return a body with one to three mistakes."""
    body = copy.deepcopy(body)
    for _ in range(dice.randint(1, 3)):
        there = list(places(body))
        if not there:
            break
        *path, last = dice.choice(there)
        holder: Any = body
        for key in path:
            holder = holder[key]
        match dice.randrange(4):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case 2 if isinstance(holder, dict):
                holder[dice.choice(["nonsense", "type", "role", "content", "name", "schema", "é"])] = dice.choice(WRONG)
            case _:
                holder[last] = copy.deepcopy(dice.choice(WRONG))
    return body


def check(answer: httpx.Response, body: object) -> bool:
    """Whether an answer tells of a mistake; asserts that it does so as it should."""
    told = f"{answer.request.url.path} {json.dumps(body)[:1500]}\n-> {answer.status_code} {answer.text[:600]}"
    if answer.status_code == 500 and answer.json()["error"].get("code") in MODELS:
        return False
    assert answer.status_code < 500, told
    if answer.status_code < 400:
        # what goes wrong within a stream is an event of it; a mistake is told before
        assert '"internal_error"' not in answer.text, told
        return False
    error = answer.json()["error"]
    assert error["message"] and error["code"], told
    assert "Traceback" not in error["message"] and "pydantic" not in error["message"], told
    return True


@pytest.mark.parametrize("path", BODIES)
async def test_mistakes_in_bodies_are_told(serve: Any, path: str) -> None:
    dice, told, made = random.Random(path), 0, 0
    async with serve('{"a": 1}') as served, httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as http:
        for body in BODIES[path]:
            if "/nobody" not in path and "resume" not in body:
                answer = await http.post(path, json=body)
                assert answer.status_code < 300, f"without a mistake it passes: {answer.text}"
            for _ in range(EACH):
                wrong = broken(body, dice)
                content = json.dumps(wrong)
                answer = await http.post(path, content=content, headers={"content-type": "application/json"})
                told, made = told + check(answer, wrong), made + 1
    assert told > made / 4, "most of what is generated is a mistake"


@pytest.mark.parametrize("planner", ["single", "sample:n=2", "refine"])
async def test_an_image_for_a_model_that_sees_none_is_a_mistake(serve: Any, planner: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
    content = [{"type": "text", "text": "What is it?"}, image]
    body = {"model": f"plait/{planner}", "messages": [{"role": "user", "content": content}]}
    async with serve() as served, httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{served.base}/chat/completions", json=body)
        assert answer.status_code == 400 and check(answer, body)
        assert "sees no images" in answer.json()["error"]["message"]


RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff",
    b'{"model": NaN}',
    b'{"a":' * 5000,
    b'{"model": "q", "model": 1e999}',
]


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_no_body_is_told(serve: Any, path: str) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as http:
        for content in RAW:
            answer = await http.post(path, content=content, headers={"content-type": "application/json"})
            assert check(answer, content.decode("latin-1")[:50])
        other = await http.post(path, content=b"x", headers={"content-type": "text/plain"})
        assert other.status_code == 415 and check(other, "text/plain")


NAMES = ["nobody", "%00", "%ff", "a" * 5000, "..%2f..", "%F0%9F%98%80", "'; DROP TABLE documents; --"]
QUERIES = [
    "after=nobody",
    "limit=0",
    "limit=x",
    "limit=99999",
    "order=up",
    "metadata[]=x",
    "stream=true&starting_after=x",
]
READ = ("/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/chat/completions/{}",
        "/v1/chat/completions/{}/messages",
        "/runs/{}", "/runs/{}/data", "/runs/{}/events", "/{}")  # fmt: skip


async def test_names_of_nothing_are_told(serve: Any) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as http:
        for address in READ:
            for name in NAMES:
                answer = await http.get(address.format(name))
                assert check(answer, name), address
                if "/v1/" in address and not address.endswith(("items", "messages")):
                    assert check(await http.delete(address.format(name)), name)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/runs", "/v1/responses/nobody"])
async def test_queries_that_make_no_sense_are_told(serve: Any, path: str) -> None:
    async with serve() as served, httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=60) as http:
        told = [check(await http.get(f"{path}?{query}"), query) for query in QUERIES]
    assert any(told)
