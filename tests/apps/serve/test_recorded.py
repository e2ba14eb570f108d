"""What every endpoint answers, whole, streamed and as an error, byte for byte: compared with `recorded.txt`.

The file holds a digest of each answer. With `RECORD_ANSWERS=FOLDER` the test rewrites it, and
writes the answers themselves to FOLDER: the diff of two such folders shows what a change does to clients.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plait.workers.scripted import Reply, Scripted

FILE = Path(__file__).with_name("recorded.txt")
USER = {"role": "user", "content": "6 x 7?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": PARAMETERS}
PNG = "data:image/png;base64,aaaa"
CUSTOM = {"name": "sql", "format": {"type": "text"}}
CALL = 'Look:<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call>'
ASKS_SQL = '<tool_call>{"name":"sql","arguments":{"input":"select(1)"}}</tool_call>'
TIMES = re.compile(r'"(created|created_at|completed_at|seconds|timestamp)":\s?[0-9.e+-]+')
REPLIES = {
    "text": "42.",
    "words": "one two three",
    "thoughts": "<think>6*7</think>42.",
    "call": CALL,
    "both": f"<think>city?</think>{CALL}{CALL.replace('Rome', 'Oslo')[5:]}",
    "custom": ASKS_SQL,
    "braces": 'Use:<tool_call>{"name":}</tool_call>.',
    "empty": "",
    "json": '{"n":42}',
}
"""Each but one is one token: a longer text comes in pieces that depend on the time."""
SAMPLE = "plait/sample:n=2@scripted"


def conversations() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield name, reply, path and body of each request."""
    chat, text, message, response, agui = (
        "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/agui",
    )  # fmt: skip
    ask: dict[str, Any] = {"model": "scripted", "messages": [USER]}
    claude = {**ask, "max_tokens": 50}
    put = {"model": "scripted", "input": "6 x 7?"}
    front = {"threadId": "t", "runId": "r", "messages": [{"id": "1", **USER}]}
    steps = {"model": SAMPLE, "plait": {"steps": True}}
    function = [{"type": "function", "function": FUNCTION}]
    flat = [{"type": "function", **FUNCTION}]
    theirs = [{"name": "weather", "input_schema": PARAMETERS}]
    for reply in ("text", "thoughts", "braces", "empty"):
        yield f"chat {reply}", reply, chat, ask
        yield f"completion {reply}", reply, text, {"model": "scripted", "prompt": "6 x 7?"}
        yield f"message {reply}", reply, message, claude
        yield f"response {reply}", reply, response, put
        yield f"agui {reply}", reply, agui, front
    for reply in ("call", "both"):
        yield f"chat {reply}", reply, chat, {**ask, "tools": function}
        yield f"message {reply}", reply, message, {**claude, "tools": theirs}
        yield f"response {reply}", reply, response, {**put, "tools": flat}
        yield f"agui {reply}", reply, agui, {**front, "tools": [FUNCTION]}
    yield "chat custom", "custom", chat, {**ask, "tools": [{"type": "custom", "custom": CUSTOM}]}
    yield "response custom", "custom", response, {**put, "tools": [{"type": "custom", **CUSTOM}]}
    for name, path, body in (
        ("chat", chat, ask), ("message", message, claude), ("response", response, put), ("agui", agui, front),
        ("completion", text, {"prompt": "6 x 7?"}),
    ):  # fmt: skip
        yield f"{name} steps", "thoughts", path, {**body, **steps}
        yield f"{name} cut", "words", path, {**body, "model": "scripted", _limit(path): 1}
        yield f"{name} fails", "fails", path, {**body, "model": "scripted"}
        yield f"{name} one branch fails", "half", path, {**body, **steps}
        tools = {message: theirs, chat: function}.get(path, flat)
        yield f"{name} must call", "text", path, {**body, "model": "scripted", "tool_choice": "required",
                                                  "tools": tools}  # fmt: skip
        yield f"{name} no model", "text", path, {**body, "model": "plait/none"}
        yield f"{name} fields", "text", path, {**body, "model": "scripted", "user": "ann", "temperature": 0.5,
                                               "seed": 3, "speed": "fast", "min_tokens": 1, "what": 1}  # fmt: skip
        yield f"{name} no thoughts", "thoughts", path, {**body, "model": "scripted", "include_reasoning": False}
        yield f"{name} logprobs", "text", path, {**body, "model": "scripted", "logprobs": 1, "top_logprobs": 2}
        yield f"{name} wrong", "text", path, {**body, "model": "scripted", "temperature": 7}
    yield "chat usage", "text", chat, {**ask, "n": 1, "stream_options": {"include_usage": True}}
    yield "chat choices", "thoughts", chat, {**ask, "n": 2, "stream_options": {"include_usage": True}}
    yield "chat stored", "call", chat, {**ask, "tools": function, "store": True, "metadata": {"a": "b"}}
    yield "chat form", "json", chat, {**ask, "response_format": {"type": "json_object"}}
    yield "chat continued", "text", chat, {**ask, "messages": [USER, {"role": "assistant", "content": "The"}],
                                           "continue_final_message": True}  # fmt: skip
    yield "completion choices", "text", text, {"model": "scripted", "prompt": ["a 7?", "b 7?"], "n": 2, "echo": True}
    yield "message continued", "text", message, {**claude, "messages": [USER, {"role": "assistant", "content": "The"}]}
    yield "response form", "json", response, {**put, "text": {"format": {"type": "json_object"}}}
    yield "response in the background", "thoughts", response, {**put, "background": True}
    yield "agui branches of tools", "text", agui, {**front, "forwardedProps": {"model": SAMPLE}}


MESSAGES: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}},
                                     {"type": "image_url", "image_url": {"url": PNG}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": 7}]},
        {"role": "user"},
        {"role": "robot", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select"}, "x": 1}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ],
    "/v1/messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": PNG}}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "aaaa",
                                                                  "media_type": "image/png"}}]},
        {"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": "page"}}]},
        {"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "http://x"}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": 7},
        {"role": "robot", "content": "x"},
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"},
                                          {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "R"}}]},
        {"role": "assistant", "content": [{"type": "image"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "7", "is_error": True},
                                     {"type": "text", "text": "go on"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "7"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image"}]}]},
    ],
    "/v1/responses": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,aaaa"}]},
        {"role": "user", "content": [{"type": "input_file"}]},
        {"role": "user", "content": 7},
        {"role": "robot", "content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "7"}]},
        {"type": "reasoning", "summary": []},
        {"type": "item_reference", "id": "x"},
        {"type": "function_call", "name": "weather"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "status": "incomplete"},
    ],
    "/agui": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "value": PNG}}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "data", "value": "aaaa",
                                                                  "mimeType": "image/png"}}]},
        {"role": "user", "content": [{"type": "audio"}]},
        {"role": "reasoning", "content": "hm"},
        {"role": "assistant", "toolCalls": [{"id": "c1", "type": "function", "x": 1,
                                             "function": {"name": "weather", "arguments": "{}"}}]},
        {"role": "assistant", "toolCalls": 7},
        {"role": "tool", "toolCallId": "c1", "content": "7", "error": "late"},
        {"role": "tool", "content": "7"},
    ],
}  # fmt: skip


def _limit(path: str) -> str:
    return "max_output_tokens" if path == "/v1/responses" else "max_tokens"


def _worker() -> Scripted:
    fails = Reply(when="<fails>", text="no_tokens", finish="error")
    half = [Reply(when="<half>", text="gone", finish="error", times=1), Reply(when="<half>", text="42.")]
    return Scripted(
        [fails, *half * 9, *(Reply(when=f"<{name}>", text=text) for name, text in REPLIES.items())], slots=1
    )


class Recorder:
    """Requests and what came back, as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, answer: httpx.Response, *, sent: str = "") -> None:
        ignored = answer.headers.get("x-plait-ignored", "")
        head = f"== {name}: {answer.status_code}" + (f" ignored={ignored}" if ignored else "")
        text = TIMES.sub(r'"\1":0', answer.text.strip())
        if "choices, streamed" in name:  # their pieces come in any order
            text = "\n\n".join(sorted(text.split("\n\n")))
        self.lines += [head, text] + ([f"asked: {sent}"] if sent else [])


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes the ids of runs numbers from then on: a server with tenants has salts before."""

    def begin() -> None:
        numbers = itertools.count(1)
        monkeypatch.setattr(secrets, "token_hex", lambda _=32: f"{next(numbers)}")

    return begin


async def test_every_endpoint_answers_as_recorded(serve: Any, count: Callable[[], None]) -> None:
    pytest.importorskip("ag_ui")
    recorder = Recorder()
    settings = {"planners": ("single", "sample")}
    async with (
        serve(workers=[_worker()], **settings) as served,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        count()
        for (name, reply, path, body), stream in itertools.product(conversations(), (False, True)):
            if path != "/agui" or stream:
                sent = json.loads(json.dumps({**body, "stream": stream}).replace("7?", f"7? <{reply}>"))
                if not stream:
                    sent.pop("stream_options", None)
                answer = await http.post(f"{served.url}{path}", json=sent)
                recorder.add(f"{name}{', streamed' * stream}", answer)
                await _read_again(http, recorder, served, path, body, answer)
    _compare("answers", recorder.lines)


async def _read_again(http: Any, recorder: Recorder, served: Any, path: str, body: Any, answer: Any) -> None:
    """Read what the server keeps: stored completions, and responses."""
    if answer.status_code != 200:
        return
    if body.get("background") and not answer.headers["content-type"].startswith("text/event-stream"):
        name = answer.json()["id"]
        recorder.add("followed", await http.get(f"{served.url}{path}/{name}", params={"stream": "true"}))
        after = {"stream": "true", "starting_after": 3}
        recorder.add("followed from event 4", await http.get(f"{served.url}{path}/{name}", params=after))
        recorder.add("items", await http.get(f"{served.url}{path}/{name}/input_items"))
        more = {"model": "scripted", "input": "and 7 x 7? <text>", "previous_response_id": name}
        recorder.add("continued", await http.post(f"{served.url}{path}", json=more))
    if body.get("store"):
        recorder.add("list", await http.get(f"{served.url}{path}"))
        name = (await http.get(f"{served.url}{path}")).json()["data"][0]["id"]
        recorder.add("stored messages", await http.get(f"{served.url}{path}/{name}/messages"))
        recorder.add("update", await http.post(f"{served.url}{path}/{name}", json={"metadata": {"c": "d"}}))
        recorder.add("delete", await http.delete(f"{served.url}{path}/{name}"))
        recorder.add("deleted", await http.get(f"{served.url}{path}/{name}"))


async def test_every_kind_of_message_is_read_as_recorded(serve: Any, count: Callable[[], None]) -> None:
    pytest.importorskip("ag_ui")
    recorder = Recorder()
    async with serve() as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        count()
        asked: list[Any] = []
        submit = served.service.orchestrator.submit

        async def watched(request: Any, **options: Any) -> Any:
            asked.append(request)
            return await submit(request, **options)

        served.service.orchestrator.submit = watched
        for path, messages in MESSAGES.items():
            calls = {"/v1/chat/completions": [{"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}  # fmt: skip
            for place, message in enumerate(messages):
                before = calls.get(path, []) if message.get("role") == "tool" else []
                many = [USER, *before, {"id": str(place), **message} if path == "/agui" else message]
                body: dict[str, Any] = {"model": "scripted", "max_tokens": 9, "messages": many}
                if path == "/v1/responses":
                    body = {"model": "scripted", "input": many}
                if path == "/agui":
                    body = {"threadId": "t", "runId": "r", "messages": many,
                            "context": [{"description": "d", "value": "v"}]}  # fmt: skip
                asked.clear()
                answer = await http.post(f"{served.url}{path}", json=body)
                text = json.dumps([each.model_dump(mode="json", include={"messages", "begin"}) for each in asked])
                if answer.status_code == 200:
                    recorder.lines += [f"== {path} {place}", text]
                else:
                    recorder.add(f"{path} {place}", answer)
    _compare("messages", recorder.lines)


async def test_the_server_describes_its_endpoints_as_recorded(serve: Any) -> None:
    recorder = Recorder()
    async with serve() as served, httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for path, body in (
            ("/v1/messages/count_tokens", {"model": "scripted", "messages": [USER]}),
            ("/v1/responses/input_tokens", {"model": "scripted", "input": "6 x 7?"}),
        ):
            recorder.add(path, await http.post(f"{served.url}{path}", json=body))
        described = (await http.get(f"{served.url}/openapi.json")).json()
        for name, schema in sorted(described["components"]["schemas"].items()):
            if name.endswith("Body"):
                recorder.lines.append(f"== {name}: {', '.join(sorted(schema['properties']))}")
    _compare("endpoints", recorder.lines)


def _compare(part: str, lines: list[str]) -> None:
    """Compare the digest of each answer with the recorded one, or record it."""
    answers = [text.strip() for text in "\n".join(["", *lines]).split("\n== ")[1:]]
    now = [f"{part} {hashlib.sha256(text.encode()).hexdigest()[:12]} {text.splitlines()[0][:70]}" for text in answers]
    if folder := os.environ.get("RECORD_ANSWERS"):
        Path(folder, f"{part}.txt").write_text("\n\n== ".join(["", *answers]))
        others = [line for line in FILE.read_text().splitlines() if not line.startswith(f"{part} ")]
        FILE.write_text("\n".join(sorted([*others, *now], key=lambda line: line.partition(" ")[0])) + "\n")
    recorded = [line for line in FILE.read_text().splitlines() if line.startswith(f"{part} ")]
    changed = [text for text, line in zip(answers, now, strict=True) if line not in recorded]
    assert not changed, "these answers changed:\n== " + "\n== ".join(changed)
    assert len(recorded) == len(now)
