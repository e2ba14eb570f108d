"""Whatever an upstream sends, a client gets an answer or an error that says why. No request hangs; no key is told."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from plait.workers.http import Http
from plait_server.settings import Tenant
from plait_server.tenants import hashed, new_key
from tests.workers.http.fake_server import FakeServer

Wild = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]
SECRET = "sk-very-secret-4711"
KEY = new_key()
TENANTS = (Tenant(name="ann", keys=(hashed(KEY),)),)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
DONE = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text(content: object, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None, **more}
    return data({"choices": [choice]})


END = data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


def usage(prompt: object, completion: object) -> bytes:
    return data({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def status(line: bytes, head: bytes = b"", body: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + line + b"\r\n" + head + b"content-length: %d\r\n\r\n" % len(body) + body


MODES: dict[str, bytes] = {
    "nothing": b"",
    "cut off": STREAM + text("half "),
    "half a character": STREAM + data(b'{"choices":[{"index":0,"delta":{"content":"\xc3"}}]}') + END + DONE,
    "no unicode": STREAM + data(b'{"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}') + END + DONE,
    "half a pair": STREAM + data(b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}') + END + DONE,
    "garbage": STREAM + b"lkjh\n\ndata: {no json\n\n",
    "a login page": status(b"200 OK", b"content-type: text/html\r\n", b"<html>login</html>"),
    "no done": STREAM + text("all") + END,
    "no finish": STREAM + text("all") + DONE,
    "huge usage": STREAM + text("all") + END + usage(10**15, 10**15) + DONE,
    "negative usage": STREAM + text("all") + END + usage(-5, -7) + DONE,
    "usage in words": STREAM + text("all") + END + usage("many", None) + DONE,
    "infinite usage": STREAM + text("all") + END + usage(float("nan"), float("inf")) + DONE,
    "full": status(b"429 Busy", b"retry-after: -5\r\n", b'{"error":{"message":"slow"}}'),
    "full until nan": status(b"429 Busy", b"retry-after: nan\r\n", b"{}"),
    "broken": status(b"500 Oops", b"", b"boom " + SECRET.encode()),
    "no such thing": status(b"404 Not Found", b"", b""),
    "in a circle": status(b"307 There", b"location: /v1/chat/completions\r\n"),
    "sent elsewhere": status(b"307 There", b"location: http://169.254.169.254/\r\n"),
    "a bomb": JSON + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"[" + b" " * (80 << 20), 6),
    "a call far away": STREAM + data({"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 99_999_999, "function": {"name": "x", "arguments": "{"}}]}}]}) + END + DONE,
    "another choice": STREAM + data({"choices": [{"index": 999, "delta": {"content": "x"}}]}) + END + DONE,
    "no choices": STREAM + b"".join(map(data, ({"choices": None}, {"choices": [None]}, {"choices": "a"}, [1]))) + DONE,
    "an error within": STREAM + text("half") + data({"error": {"message": "CUDA OOM", "code": 500}}) + DONE,
    "a list as text": STREAM + text([{"type": "text", "text": "a"}]) + END + DONE,
    "its key": STREAM + text(f"it is {SECRET}") + END + usage(3, 4) + DONE,
    "a bad length": JSON + b"content-length: 999\r\n\r\n{}",
    "a bad chunk": STREAM[:-2] + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "endless headers": status(b"200 OK", b"".join(b"x-%d: %s\r\n" % (n, b"y" * 8000) for n in range(30))),
}  # fmt: skip


def of_stream(body: str) -> tuple[str, str]:
    """Return the text and the error of a streamed answer. It has an end."""
    lines = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    error = "".join(event["error"]["message"] for event in events if "error" in event)
    assert error or lines[-1] == "[DONE]", body[-500:]
    choices = [choice for event in events for choice in event.get("choices") or ()]
    deltas = [choice["delta"] for choice in choices]
    return "".join(delta.get("content") or str(delta.get("tool_calls") or "") for delta in deltas), error


async def ask(url: str, stream: bool) -> tuple[str, str]:
    """Return the text and the error of an answer."""
    body = {"model": "fake-model", "max_tokens": 500, "stream": stream, "messages": [{"role": "user", "content": "?"}]}
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=20) as http:
        said = await http.post(f"{url}/v1/chat/completions", json=body)
    assert SECRET not in said.text and "169.254" not in said.text.replace("http://169.254.169.254:80", "")
    if stream and said.status_code == 200:
        return of_stream(said.text)
    if said.status_code == 200:
        return said.json()["choices"][0]["message"]["content"] or "", ""
    return "", said.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_client_gets_an_answer_or_a_reason(serve: Any, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    async with FakeServer(ids=False, completions=False) as server:
        worker = Http(server.url, api_key_env="UPSTREAM_KEY", backoff=0.001, retries=1, first_timeout=5, timeout=5)
        config = {"worker_wait": 1.0}
        tenants = tuple(tenant.model_copy(update={"salted": False}) for tenant in TENANTS)
        async with serve(workers=[worker], tenants=tenants, config=config, seconds_per_run=10.0) as served:
            for name, sent in MODES.items():

                async def answer(writer: asyncio.StreamWriter, _: Any, sent: bytes = sent) -> None:
                    writer.write(sent)

                server.wild = answer
                content, error = await ask(served.url, stream)
                assert content or len(error) > 10, (name, content, error)
            server.wild = None
            content, error = await ask(served.url, stream)
            assert content and not error, "it serves on"


async def test_a_stream_that_is_asked_for_again_repeats_no_text(serve: Any) -> None:
    """Before, a client got the text of each try: `half half half`, and then the error."""
    async with FakeServer(ids=False, completions=False) as server:
        asked: list[bytes] = []

        async def cut_off(writer: asyncio.StreamWriter, _: Any) -> None:
            asked.append(STREAM)
            writer.write(STREAM + text("half "))

        worker = Http(server.url, backoff=0.001, retries=2, first_timeout=5, timeout=5)
        tenants = tuple(tenant.model_copy(update={"salted": False}) for tenant in TENANTS)
        async with serve(workers=[worker], tenants=tenants, config={"worker_wait": 1.0}, seconds_per_run=5.0) as served:
            server.wild = cut_off
            content, error = await ask(served.url, stream=True)
        assert len(asked) > 1 and content.split() == ["half"] and len(error) > 10, (content, error, len(asked))
