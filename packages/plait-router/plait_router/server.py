"""The router as a process before OpenAI servers: `plait-router --upstream URL --upstream URL`."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
from collections.abc import AsyncIterator, Sequence

import aiohttp
from aiohttp import web
from yarl import URL

from . import Router

log = logging.getLogger("plait_router")

HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
SESSION_HEADERS = (
    "x-session-id", "x-dynamo-session-id", "x-claude-code-session-id", "x-opencode-session", "x-session-affinity",
    "session-id", "session_id",
)  # fmt: skip
"""The first one that is set names the session. Those of a connection, above, are not passed on."""
CHECK_INTERVAL_S, CONNECT_TIMEOUT_S, MAX_BODY_BYTES = 5.0, 5.0, 64 << 20


class Gateway:
    """Passes each request on to the upstream that the router chooses, and its answer back byte by byte.

    `kv_events`: ZMQ addresses of the upstreams' KV cache events, in the order of the upstreams.
    """

    def __init__(self, router: Router, kv_events: Sequence[str] = ()) -> None:
        self._router, self._upstreams = router, list(router.running)
        self._events = dict(zip(self._upstreams, kv_events, strict=True)) if kv_events else {}
        self.app = web.Application(client_max_size=MAX_BODY_BYTES)
        """The application."""
        self.app.add_routes([web.get("/health", self._health), web.get("/metrics", self._metrics)])
        self.app.router.add_route("*", "/v1/{rest:.*}", self._forward)
        self.app.cleanup_ctx.append(self._connect)

    async def _connect(self, app: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)  # a server closes idle connections after 5 s
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._client:
            tasks = [asyncio.create_task(self._check(url)) for url in self._upstreams]
            tasks += [asyncio.create_task(self._follow(*source)) for source in self._events.items()]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CONNECT_TIMEOUT_S)  # bounded: SIGTERM always ends the process

    async def _follow(self, url: str, address: str) -> None:
        import msgspec
        import zmq.asyncio

        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(address)
            wanted = 0
            while True:
                *_, number, batch = await socket.recv_multipart()
                try:
                    lost = int.from_bytes(number, "big") != wanted
                    events = [{"type": "AllBlocksCleared"}] * lost + msgspec.msgpack.decode(batch)[1]
                    self._router.record_kv_events(url, events)
                except Exception as error:  # the format of another vLLM: what the message was about is unknown
                    log.warning("unreadable KV event of %s: %s: %s", url, type(error).__name__, error)
                    self._router.record_kv_events(url, [{"type": "AllBlocksCleared"}])
                wanted = int.from_bytes(number, "big") + 1

    async def _check(self, url: str) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S), self._client.get(f"{url}/models") as response:
                    is_up = response.status < 500
            except (aiohttp.ClientError, TimeoutError):
                is_up = False
            (self._router.add if is_up else self._router.set_down)(url)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self._router.running, status=200 if self._router.running else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        values = {"running": {url: self._router.running.get(url, -1) for url in self._upstreams}}  # -1: down
        values["requests_total"] = dict(self._router.totals)
        lines = [
            f'plait_router_{name}{{upstream="{url}"}} {value}\n'
            for name in values
            for url, value in values[name].items()
        ]
        return web.Response(text="".join(lines))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body, given = await request.read(), request.headers
        session = next((given[name] for name in SESSION_HEADERS if name in given), "")
        headers = [(name, value) for name, value in given.items() if name.lower() not in HOP_HEADERS]
        answer: web.StreamResponse = _refuse(503, "no upstream is up: start one, or wait for the next check")
        while self._router.running and not answer.prepared:
            url = self._router.begin(read_prompt(body), session, given.get("x-program-id", ""))
            target = URL(url + request.raw_path.removeprefix("/v1"), encoded=True)
            try:
                async with self._client.request(request.method, target, headers=headers, data=body) as upstream:
                    pairs = [pair for pair in upstream.headers.items() if pair[0].lower() not in HOP_HEADERS]
                    answer = web.StreamResponse(status=upstream.status, headers=pairs)
                    await answer.prepare(request)
                    async for chunk in upstream.content.iter_any():
                        await answer.write(chunk)
            except aiohttp.ClientConnectorError:  # it got nothing, so another one may
                self._router.set_down(url)
            except aiohttp.ClientError as error:
                if answer.prepared:  # the client has to see that the rest is missing
                    raise
                return _refuse(502, f"{url} broke off: {error}")
            finally:
                self._router.end(url)
        return answer


def read_prompt(body: bytes) -> str | Sequence[int]:
    """Return the prompt of a request: its token ids, or a text. The texts of prompts that begin alike begin alike."""
    try:
        fields = json.loads(body)
        prompt = fields.get("prompt") or fields.get("messages") or fields.get("input") or ""
    except (ValueError, AttributeError, RecursionError):
        return ""
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) and 0 <= token < 1 << 31 for token in prompt):
        return prompt
    return json.dumps([fields.get("model"), fields.get("tools"), prompt])


def _refuse(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers={"Retry-After": "1"})


def main() -> None:
    """Run the process until it is interrupted."""
    parser = argparse.ArgumentParser(prog="plait-router", description="Chooses a server for each request.")
    parser.add_argument("--upstream", action="append", required=True, metavar="URL", help="http://HOST:PORT/v1")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--slots", type=int, default=128, help="sequences that an upstream runs at once")
    parser.add_argument("--cache-tokens", type=int, help="size of an upstream's prefix cache")
    parser.add_argument(
        "--kv-events", action="append", default=[], metavar="ADDRESS", help="ZMQ address of an upstream's KV events"
    )
    options = parser.parse_args()
    if len(options.kv_events) not in (0, len(options.upstream)):
        parser.error(f"{len(options.kv_events)} --kv-events for {len(options.upstream)} --upstream: give one for each")
    if options.kv_events and not all(map(importlib.util.find_spec, ("msgspec", "zmq"))):
        parser.error("--kv-events needs msgspec and pyzmq: pip install 'plait-router[kv-events]'")
    upstreams = [url.rstrip("/") for url in options.upstream]
    router = Router(upstreams, slots=options.slots, cache_tokens=options.cache_tokens)
    web.run_app(Gateway(router, options.kv_events).app, host=options.host, port=options.port, handler_cancellation=True)
