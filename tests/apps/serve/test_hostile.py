"""Clients that are slow, broken or hostile: an error in OpenAI's form or a closed connection, and nothing left behind.

That no task and no run is left, the fixture `serve` checks at the end of every test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx
import pytest

from plait.workers.scripted import Reply

_BODY = json.dumps({"model": "q", "messages": [{"role": "user", "content": "x"}]}).encode()
pytestmark = pytest.mark.alone("it waits until the server has no connection, and others keep some")
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def _open(served):
    host, port = served.url.removeprefix("http://").rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def _said(reader) -> bytes:
    """All until the server closes."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 300)
    return b""


async def _quiet(served):
    """Wait until the server has forgotten all connections and runs."""
    while served.server._uvicorn.server_state.connections or served.service.live:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"nonsense", b"\xff\xfe\x00", b"[]", b'"text"', b"12", b"null", b"{"),
        *(b'{"model": NaN}', b'{"model": 1e999}'),
        b"[" * 40_000,
        b'{"a":' * 40_000,
        b'{"model":"q","messages":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model":"q","messages":[{"role":"user","content":"x"}],"metadata":' + b'{"b":' * 150 + b"1" + b"}" * 151,
        b'{"model":"q","messages":[{"role":"user","content":[{"type":"text"}]}]}',
        b'{"model":"q","messages":[{"role":"user","content":{"a":1}}]}',
        b'{"model":"q","messages":"x"}',
        b'{"model":["q"],"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"q","seed":' + b"9" * 5000 + b',"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"' + b"q" * 100_000 + b'","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"plait/' + b"a:b=" * 400 + b'","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"plait/sample:n=1000000000","messages":[{"role":"user","content":"x"}]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_nonsense_is_refused_in_openais_form(shared, body, path):
    async with httpx.AsyncClient() as http:
        said = await http.post(f"{shared.base}/{path}", content=body)
    assert said.status_code == 400, said.text[:300]
    assert set(said.json()["error"]) == {"message", "type", "param", "code"}
    assert len(said.text) < 3000
    await _quiet(shared)


async def test_a_body_of_a_gigabyte_is_refused_at_once(serve):
    async with serve() as served:
        for length in (b"content-length: 1073741824\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"):
            reader, writer = await _open(served)
            writer.write(_HEAD + length)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 1 << 30 and not reader.at_eof():
                    writer.write(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                    await writer.drain()
                    sent += 65536
            said = await _said(reader)
            assert sent < 64 << 20
            assert not said or b" 401 " in said or (b" 413 " in said and b"body_too_long" in said)
            writer.close()
        await _quiet(served)


@pytest.mark.parametrize("lines", [100_000, 1])
async def test_a_head_without_end_is_refused(serve, lines):
    async with serve() as served:
        reader, writer = await _open(served)
        with contextlib.suppress(ConnectionError):
            writer.write(_HEAD)
            for _ in range(lines):
                writer.write(b"x-a: b\r\n" if lines > 1 else b"x-a: " + b"b" * 5_000_000)
                await writer.drain()
        said = await _said(reader)
        assert not said or b" 400 " in said
        writer.close()
        await _quiet(served)


@pytest.mark.without_keys("sends bytes without a key: with keys the answer is 401 before a body is read")
async def test_slow_heads_and_bodies_are_cut_off(serve):
    async with serve(header_seconds=0.3, body_seconds=0.3) as served:
        for begun in (b"", b"POST /v1/chat", _HEAD, _HEAD + b"content-length: 100\r\n\r\n{"):
            reader, writer = await _open(served)
            writer.write(begun)
            said = await _said(reader)
            assert not said or b" 408 " in said
            writer.close()
        await _quiet(served)


@pytest.mark.without_keys("sends bytes without a key: with keys the answer is 401 before a body is read")
async def test_a_client_that_reads_nothing_is_cut_off(serve):
    async with serve(Reply(text="word " * 2_000_000), stalled_seconds=0.4) as served:
        reader, writer = await _open(served)
        asked = json.loads(_BODY) | {"stream": True, "max_tokens": 2_000_000, "plait": {"steps": True}}
        body = json.dumps(asked).encode()
        reader._transport.pause_reading()
        writer.write(_HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        await _quiet_after_a_run(served)
        writer.transport.abort()


async def _quiet_after_a_run(served):
    while not served.worker.counts["requests"]:
        await asyncio.sleep(0.005)
    await _quiet(served)


async def test_half_closed_and_reset_connections_leave_nothing(serve):
    async with serve(Reply(text="word " * 500, tokens_per_second=200)) as served:
        for stream in (False, True):
            body = json.dumps(json.loads(_BODY) | {"stream": stream, "max_tokens": 500}).encode()
            for end in ("half", "reset", "body"):
                _, writer = await _open(served)
                whole = _HEAD + f"content-length: {len(body) + (end == 'body')}\r\n\r\n".encode() + body
                writer.write(whole)
                await writer.drain()
                if end == "half":
                    writer.write_eof()
                await asyncio.sleep(0.05)
                writer.transport.abort()
        await _quiet(served)
        assert not served.worker.stats()["running"]


async def test_garbage_on_the_socket(serve):
    async with serve() as served:
        for junk in (
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET\r\n\r\n",
            b"\x00" * 1000,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            reader, writer = await _open(served)
            writer.write(junk)
            writer.write_eof()
            said = await _said(reader)
            assert b" 200 " not in said
            writer.close()
        async with httpx.AsyncClient() as http:
            for path in (
                "/v1/responses/x",
                "/v1/responses/../../etc/passwd",
                "/v1/%00",
                "/nowhere",
                "/v1/models/nope/%ff",
            ):
                said = await http.get(served.url + path)
                assert said.status_code in (200, 404), path
                if said.status_code == 404:
                    assert said.json()["error"]["message"]
            said = await http.put(f"{served.base}/chat/completions")
            assert said.status_code == 405 and said.json()["error"]["code"] == "method_not_allowed"
        await _quiet(served)
