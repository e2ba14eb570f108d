"""A server of models that writes a token every `TOKEN_S` and notes when.

    python -m experiments.cancelled.upstream PORT

It stops a request when its connection closes, streamed or not, as `vllm serve` does. `GET /requests` returns the times
of the tokens of each request since the last `POST /reset`, by the monotonic clock that all processes share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from aiohttp import web

MODEL = "q"
TOKEN_S = 0.01
MAX_TOKENS = 2_000
VOTE = "VOTE"
"""In a prompt: the first `DECIDING` requests give the same short answer, the others do not end by themselves."""
DECIDING, SHORT_TOKENS = 5, 20


class Upstream:
    """The requests since the last reset."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Write tokens until the answer is whole or the connection closes."""
        body = await request.json()
        vote = VOTE in json.dumps(body.get("messages") or body.get("prompt"))
        noted: dict[str, Any] = {"vote": vote, "stamps": [], "ended": None}
        self.requests.append(noted)
        short = vote and sum(each["vote"] for each in self.requests) <= DECIDING
        limit = min(body.get("max_completion_tokens") or body.get("max_tokens") or MAX_TOKENS, MAX_TOKENS)
        count = SHORT_TOKENS if short else limit
        head = {"id": "chatcmpl-1", "created": 1, "model": MODEL, "object": "chat.completion"}
        response: web.StreamResponse | None = None
        try:
            if body.get("stream"):
                head["object"] += ".chunk"
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
            for number in range(count):
                await asyncio.sleep(TOKEN_S)
                noted["stamps"].append(time.monotonic())
                if response is not None:
                    await write(response, head, {"content": self.word(short, number, count)}, None)
            usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
            reason = "stop" if short else "length"
            if response is None:
                text = "".join(self.word(short, number, count) for number in range(count))
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "message": message, "finish_reason": reason}
                return web.json_response({**head, "choices": [choice], "usage": usage})
            await write(response, head, {}, reason)
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(b"data: " + json.dumps({**head, "choices": [], "usage": usage}).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
            return response
        finally:
            noted["ended"] = time.monotonic()

    @staticmethod
    def word(short: bool, number: int, count: int) -> str:
        """Return a token of an answer; the last of a short one is its result."""
        return "42" if short and number == count - 1 else "word "

    async def report(self, request: web.Request) -> web.Response:
        """Return the requests."""
        return web.json_response(self.requests)

    async def reset(self, request: web.Request) -> web.Response:
        """Forget the requests."""
        self.requests = []
        return web.Response()


async def write(response: web.StreamResponse, head: dict[str, Any], delta: dict[str, Any], reason: str | None) -> None:
    """Write one event of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    await response.write(b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n")


async def list_models(request: web.Request) -> web.Response:
    """List the one model."""
    card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}
    return web.json_response({"object": "list", "data": [card]})


def main(port: int) -> None:
    """Serve until killed."""
    upstream, app = Upstream(), web.Application()
    app.router.add_post("/v1/chat/completions", upstream.answer)
    app.router.add_post("/v1/completions", upstream.answer)
    app.router.add_get("/v1/models", list_models)
    app.router.add_get("/health", lambda _: web.Response())  # type: ignore[arg-type]
    app.router.add_get("/requests", upstream.report)
    app.router.add_post("/reset", upstream.reset)
    web.run_app(app, host="127.0.0.1", port=port, handler_cancellation=True, print=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
