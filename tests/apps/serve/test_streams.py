"""Streams are passed on as they are written, by all endpoints: an upstream pauses between the pieces of its answer, and
the pieces that come through are compared with those of the upstream."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from plait import tool
from plait.core.interfaces import Worker
from plait.workers.http import Http
from plait.workers.scripted import Reply
from tests.conformance.__main__ import upstream

TRIES = 4
"""A shared machine reads pieces together, and late."""
MAX_DELAY_S = 0.05
WORDS = " ".join(f"w{n}" for n in range(12))
CITY = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in "abcdefg"},
    "required": list("abcdefg"),
    "additionalProperties": False,
}
TEXT, CALL, JSON = f"SLOWLY SAY<{WORDS}>", "SLOWLY, the weather?", "SLOWLY a city"
THINK = f"SLOWLY THINK<r0 r1 r2 r3 r4> SAY<{WORDS}>"
FUNCTION = {"name": "look", "parameters": CITY}
CHAT, TEXTS, RESPONSES, MESSAGES, AGUI = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/agui",
)  # fmt: skip
TOOLS: dict[str, Any] = {
    CHAT: [{"type": "function", "function": FUNCTION}],
    RESPONSES: [{"type": "function", **FUNCTION}],
    MESSAGES: [{"name": "look", "input_schema": CITY}],
    AGUI: [{**FUNCTION, "description": ""}],
}
FORMS: dict[str, Any] = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "city", "schema": CITY}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
}
SHAPES = {
    CHAT: {"text": TEXT, "reasoning": THINK, "call": CALL, "json": JSON},
    TEXTS: {"text": TEXT},
    RESPONSES: {"text": TEXT, "reasoning": THINK, "call": CALL, "json": JSON},
    MESSAGES: {"text": TEXT, "reasoning": THINK, "call": CALL, "json": JSON},
    AGUI: {"text": TEXT, "reasoning": THINK, "call": CALL},
}


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The address of the upstream."""
    with upstream() as address:
        yield address


def request_of(path: str, shape: str, text: str, model: str = "q") -> dict[str, Any]:
    """Return the body of a streamed request."""
    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": 200}
    message = {"role": "user", "content": text}
    if path == TEXTS:
        return {**body, "prompt": text}
    if path == RESPONSES:
        body = {"model": model, "stream": True, "input": text}
    elif path == AGUI:
        body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", **message}], "tools": [], "context": [],
                "state": {}, "forwardedProps": {"model": model}}  # fmt: skip
    else:
        body["messages"] = [message]
    return {**body, **({"tools": TOOLS[path]} if shape == "call" else {}), **(FORMS[path] if shape == "json" else {})}


def pieces_of(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of an event of any endpoint."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        yield "reasoning", delta.get("reasoning_content") or delta.get("reasoning") or ""
        yield "text", delta.get("content") or delta.get("text") or ""
        for call in delta.get("tool_calls") or ():
            yield "call", call["function"].get("arguments") or ""
    match event:
        case {"type": "content_block_delta", "delta": {"text": text}}:
            yield "text", text
        case {"type": "content_block_delta", "delta": {"thinking": text}}:
            yield "reasoning", text
        case {"type": "content_block_delta", "delta": {"partial_json": text}}:
            yield "call", text
        case {"type": "response.output_text.delta" | "TEXT_MESSAGE_CONTENT", "delta": text}:
            yield "text", text
        case {"type": "response.reasoning_text.delta" | "REASONING_MESSAGE_CONTENT", "delta": text}:
            yield "reasoning", text
        case {"type": "response.function_call_arguments.delta" | "TOOL_CALL_ARGS", "delta": text}:
            yield "call", text
        case _:
            pass


async def events_of(url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a streamed answer."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("POST", url, json=body) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


async def read_pieces(url: str, body: dict[str, Any]) -> tuple[dict[str, list[str]], float]:
    """Return the pieces of a streamed answer by kind, and the seconds until the first."""
    found: dict[str, list[str]] = {}
    began, first = time.monotonic(), 0.0
    async for event in events_of(url, body):
        assert "error" not in event or event["error"] is None, event
        for kind, text in pieces_of(event):
            if text:
                first = first or time.monotonic() - began
                found.setdefault(kind, []).append(text)
    return found, first


def same(kind: str, left: list[str], right: list[str]) -> bool:
    """Return whether pieces are the same text, or the same JSON."""
    one, other = "".join(left), "".join(right)
    return json.loads(one) == json.loads(other) if kind == "call" else one.strip() == other.strip()


@tool
def look(a: str = "") -> str:
    """Look at the weather of a city."""
    return f"sunny: SAY<{WORDS}>"


@tool(approve=True)
def book(a: str = "") -> str:
    """Book the weather of a city."""
    return f"booked: SAY<{WORDS}>"


@pytest.mark.parametrize("path", SHAPES)
async def test_pieces_come_through_as_they_are_written(serve: Callable[..., Any], base: str, path: str) -> None:
    if path == AGUI:
        pytest.importorskip("ag_ui")
    workers: list[Worker] = [Http(base_url=base)]
    plain = path if path in (CHAT, TEXTS) else CHAT
    async with serve(workers=workers) as served:
        for shape, text in SHAPES[path].items():
            await read_pieces(f"{served.url}{path}", request_of(path, shape, text.replace("SLOWLY", "")))  # warm
            for _ in range(TRIES):
                direct, direct_s = await read_pieces(f"{base[:-3]}{plain}", request_of(plain, shape, text))
                through, through_s = await read_pieces(f"{served.url}{path}", request_of(path, shape, text))
                assert direct and direct.keys() == through.keys()
                assert all(same(kind, pieces, through[kind]) for kind, pieces in direct.items())
                share = min(len(through[kind]) / len(pieces) for kind, pieces in direct.items())
                if share >= 0.9 and through_s < direct_s + MAX_DELAY_S:
                    break
            else:
                raise AssertionError(f"{shape}: first after {through_s:.3f} s, direct {direct_s:.3f} s: {through}")


@pytest.mark.parametrize("path", SHAPES)
async def test_an_agent_streams_the_text_of_its_turns(serve: Callable[..., Any], base: str, path: str) -> None:
    """As the answer, and once; not as reasoning, and without the calls, which are the server's."""
    if path == AGUI:
        pytest.importorskip("ag_ui")
    workers: list[Worker] = [Http(base_url=base)]
    async with serve(workers=workers, tools=[look], planners=["react"]) as served:
        for _ in range(TRIES):
            through, _ = await read_pieces(f"{served.url}{path}", request_of(path, "text", CALL, "plait/react@q"))
            assert "".join(through["text"]) == WORDS and "w0" not in str(through.get("reasoning"))
            if len(through["text"]) >= 11:
                break
        else:
            raise AssertionError(through)


async def test_the_question_of_an_approval_is_in_the_stream(serve: Callable[..., Any], base: str) -> None:
    workers: list[Worker] = [Http(base_url=base)]
    for path in (CHAT, TEXTS, RESPONSES, MESSAGES):
        async with serve(workers=workers, tools=[book], planners=["react"]) as served:
            asked = None
            body = request_of(path, "text", CALL.replace("SLOWLY", ""), "plait/react@q")
            async for event in events_of(f"{served.url}{path}", body):
                if "question" in (event.get("plait") or {}):
                    asked = event["plait"]["question"]
                    (live,) = served.service.live.values()
                    live.handle.answer(asked["id"], "yes")
            assert asked is not None and "book" in asked["text"]


async def test_text_that_fits_its_schema_is_kept_with_its_log_probabilities(
    serve: Callable[..., Any], base: str
) -> None:
    workers: list[Worker] = [Http(base_url=base)]
    async with serve(workers=workers) as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        body = {**request_of(CHAT, "json", "a city"), "stream": False, "logprobs": True}
        direct = (await http.post(f"{base[:-3]}{CHAT}", json=body)).json()["choices"][0]
        answer = await http.post(f"{served.url}{CHAT}", json=body)
        assert answer.status_code == 200, answer.text
        through = answer.json()["choices"][0]
    assert through["message"]["content"] == direct["message"]["content"]
    tokens = [[token["token"] for token in choice["logprobs"]["content"]] for choice in (direct, through)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("text", ['Here: {"n": 1}', '{"n": 1} That is all.', '```json\n{"n": 1}\n```'])
async def test_json_within_other_text_is_streamed_once_it_is_known(serve: Callable[..., Any], text: str) -> None:
    async with serve(text) as served:
        body = {**request_of(CHAT, "text", "a number", "scripted"), "response_format": {"type": "json_object"}}
        through, _ = await read_pieces(f"{served.url}{CHAT}", body)
    assert json.loads("".join(through["text"]).partition(" That")[0]) == {"n": 1}


async def test_an_answer_whose_repair_is_another_text_is_no_success(serve: Callable[..., Any]) -> None:
    async with serve(Reply(when="cannot be used", text='{"n": 2}'), '{"m": 1}') as served:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        body = {**request_of(CHAT, "text", "a number", "scripted"), "response_format": form}
        events = [event async for event in events_of(f"{served.url}{CHAT}", body)]
    assert events[-1]["error"]["code"] == "answer_repaired"
