"""The router as a process: bytes pass unchanged, sessions stay, what is down is passed over, who leaves is noticed."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from plait_router import Router, server
from plait_router.server import Gateway, read_prompt

Handler = Callable[[web.Request], Any]
EVENTS = [b"data: {}\n\n", b": \xff not UTF-8\n\n", b"data: [DONE]\n\n"]


async def list_models(request: web.Request) -> web.Response:
    return web.json_response({"data": []})


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Upstream": str(request.url.port)})
    await response.prepare(request)
    for event in EVENTS:
        await response.write(event)
    return response


@asynccontextmanager
async def started(*handlers: Handler, **options: Any) -> AsyncIterator[tuple[TestClient[Any, Any], list[TestServer]]]:
    """Start an upstream for each handler, and the router before them."""
    upstreams: list[TestServer] = []
    for handler in handlers:
        app = web.Application()
        app.add_routes([web.get("/v1/models", list_models), web.post("/v1/{rest:.*}", handler)])
        upstreams.append(TestServer(app, handler_cancellation=True))
        await upstreams[-1].start_server()
    router = Router([str(each.make_url("/v1")) for each in upstreams], **options)
    async with TestClient(TestServer(Gateway(router).app, handler_cancellation=True)) as client:
        yield client, upstreams
    for each in upstreams:
        await each.close()


async def test_a_stream_passes_byte_by_byte_and_its_session_stays() -> None:
    async with started(stream, stream) as (client, _):
        ports = set()
        for turn in range(4):
            body = {"messages": [{"role": "user", "content": f"turn {turn}"}], "stream": True}
            response = await client.post("/v1/chat/completions", json=body, headers={"X-Session-ID": "s"})
            assert await response.read() == b"".join(EVENTS)
            assert response.content_type == "text/event-stream"
            ports.add(response.headers["X-Upstream"])
        assert len(ports) == 1


async def test_headers_queries_status_and_packed_bodies_pass_unchanged() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(headers=request.headers.copy(), query=request.raw_path, body=await request.read())
        return web.Response(
            body=gzip.compress(b"no such model"), status=404, headers={"Content-Encoding": "gzip", "X-A": "1"}
        )

    async with started(answer) as (client, _), aiohttp.ClientSession(auto_decompress=False) as raw:
        headers = {"Authorization": "Bearer key", "Content-Type": "application/json"}
        url = client.make_url("/v1/completions?a=1&b=%20")
        async with raw.post(url, data=b'{"prompt": [1, 2]} ', headers=headers) as response:
            assert response.status == 404 and response.headers["X-A"] == "1"
            assert gzip.decompress(await response.read()) == b"no such model"
    assert seen["headers"]["Authorization"] == "Bearer key"
    assert seen["query"] == "/v1/completions?a=1&b=%20" and seen["body"] == b'{"prompt": [1, 2]} '


async def test_what_is_down_is_passed_over_and_503_if_none_is_up() -> None:
    async with started(stream, stream) as (client, upstreams):
        gone, other = upstreams
        names = [str(each.make_url("/v1")) for each in upstreams]
        await gone.close()
        for _ in range(3):
            response = await client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Session-ID": "s"})
            assert (response.status, await response.read()) == (200, b"".join(EVENTS))
        assert (await client.get("/health")).status == 200
        lines = (await (await client.get("/metrics")).text()).splitlines()
        assert f'plait_router_running{{upstream="{names[0]}"}} -1' in lines
        assert f'plait_router_running{{upstream="{names[1]}"}} 0' in lines
        assert f'plait_router_requests_total{{upstream="{names[1]}"}} 3' in lines
        await other.close()
        response = await client.post("/v1/completions", json={"prompt": "x"})
        assert response.status == 503 and response.headers["Retry-After"] == "1"
        assert "no upstream is up" in (await response.json())["error"]["message"]
        assert (await client.get("/health")).status == 503


async def test_checks_find_what_is_down_and_what_is_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CHECK_INTERVAL_S", 0.01)
    status = 500

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.add_routes([web.get("/v1/models", answer)])
    async with TestServer(app) as upstream:
        router = Router([str(upstream.make_url("/v1"))])
        async with TestClient(TestServer(Gateway(router).app)):
            for status in (503, 401):  # a server that wants a key is up
                while bool(router.running) is (status == 503):
                    await asyncio.sleep(0.01)


async def test_an_answer_that_breaks_off_breaks_off_for_the_client_too() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if request.path.endswith("late"):
            await response.prepare(request)
            await response.write(EVENTS[0])
            await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with started(break_off) as (client, _):
        response = await client.post("/v1/early", json={"prompt": "x"})
        assert response.status == 502 and "broke off" in (await response.json())["error"]["message"]
        with pytest.raises(aiohttp.ClientPayloadError):
            await (await client.post("/v1/late", json={"prompt": "x"})).read()
        assert set(json.loads(await (await client.get("/health")).text()).values()) == {0}


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_ends_the_request_upstream(begun: bool) -> None:
    ended, asked = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        try:
            if begun:
                await response.prepare(request)
                await response.write(EVENTS[0])
            asked.set()
            await asyncio.sleep(60)
        finally:
            ended.set()
        return response

    async with started(wait) as (client, _):
        asking = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "x"}))
        await asked.wait()
        if begun:
            (await asking).close()
        else:
            asking.cancel()
        async with asyncio.timeout(30):
            await ended.wait()
            while set(json.loads(await (await client.get("/health")).text()).values()) != {0}:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (b'{"prompt": [1, 2]}', [1, 2]),
        (b'{"model": "m", "prompt": "p"}', '["m", null, "p"]'),
        (b'{"messages": [{"role": "user"}], "tools": [1]}', '[null, [1], [{"role": "user"}]]'),
        (b'{"input": "i"}', '[null, null, "i"]'),
        (b"not JSON", ""), (b"", ""), (b"[1]", ""), (b"\xff", ""),
        (b'{"prompt": ["a", "b"]}', '[null, null, ["a", "b"]]'),
    ],
)  # fmt: skip
def test_the_prompt_of_a_body(body: bytes, prompt: Any) -> None:
    assert read_prompt(body) == prompt


@pytest.mark.parametrize("body", [b'{"prompt": [99999999999]}', b'{"prompt": [-1, 2]}', b"[" * 100_000])
def test_a_hostile_prompt_is_placed_as_text_or_as_nothing(body: bytes) -> None:
    prompt = read_prompt(body)  # ids beyond 32 bits, and JSON too deep to read, raised
    assert isinstance(prompt, str) and Router(["a"]).begin(prompt) == "a"


async def test_kv_events_of_the_upstreams_replace_the_guess_and_a_gap_or_another_format_empties() -> None:
    msgspec, zmq = pytest.importorskip("msgspec"), pytest.importorskip("zmq")
    ids = list(range(320))
    stored = {
        "type": "BlockStored",
        "parent_block_hash": None,
        "block_size": 16,
        "block_hashes": [*range(20)],
        "token_ids": ids,
    }
    apps = [web.Application(), web.Application()]
    for app in apps:
        app.add_routes([web.get("/v1/models", list_models)])
    with zmq.Context() as context, context.socket(zmq.PUB) as here, context.socket(zmq.PUB) as there:
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (here, there)]
        async with TestServer(apps[0]) as one, TestServer(apps[1]) as other:
            a, b = (str(upstream.make_url("/v1")) for upstream in (one, other))
            router = Router([a, b])
            router.begin(ids, engine=a)
            router.end(a)
            router.begin("x", engine=b)

            async def until(engine: str, number: int, batch: bytes) -> None:
                async with asyncio.timeout(120):
                    while router.choose(ids) != engine:  # what is sent before the subscription is lost
                        there.send_multipart([b"", number.to_bytes(8, "big"), batch])
                        await asyncio.sleep(0.01)

            async with TestClient(TestServer(Gateway(router, [f"tcp://127.0.0.1:{port}" for port in ports]).app)):
                assert router.choose(ids) == a, "it was sent there"
                router.set_down(a)
                router.add(a)
                await until(b, 0, msgspec.msgpack.encode([0.0, [stored], 0]))
                await until(a, 7, msgspec.msgpack.encode([0.0, [], 0]))
                await until(b, 0, msgspec.msgpack.encode([0.0, [stored], 0]))
                await until(a, 1, b"not msgpack")


def test_the_router_and_plait_serve_know_the_same_sessions() -> None:
    from plait_server.sessions import SESSION_HEADERS

    assert server.SESSION_HEADERS == SESSION_HEADERS
