"""`/v1/responses`: made, streamed, in the background, read, followed, cancelled, gone on from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .asked import Wishes, functions
from .assembly import Assembly
from .bodies import ResponseBody
from .errors import invalid
from .http import EventStream, read, unless_gone
from .items import messages_of
from .kept import Kept
from .live import Live
from .service import Service
from .telling import gave_nothing, tell
from .tenants import User

__all__ = ["ResponsesApi"]

_GONE = "the client went away"


class ResponsesApi:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept = service.responses
        self._work: set[asyncio.Task[None]] = set()

    async def create(self, request: Request, user: User) -> Response | EventStream:
        """Answer `POST /v1/responses`."""
        body = await read(request, ResponseBody, self._service.settings)
        body.check()
        conversation, given = self._conversation(body, user)
        wishes = Wishes(
            max_tokens=body.max_output_tokens,
            schema=body.schema_of,
            **functions((each.model_dump() for each in body.tools or ()), body.tool_choice),
            asking={"reasoning_effort": body.effort},
        )
        first = [{"role": "system", "content": body.instructions}] if body.instructions else []
        made = self._service.ask(body, [*first, *conversation], wishes, user)
        told = bool(body.stream or body.background)
        live = await self._service.submit(made, body.plait, user, watch=told)
        request.scope["plait.run"] = live.handle.run
        kept = Kept(_response(live, body), user, live, conversation, given, bool(body.background))
        stored = body.store is not False
        if stored:
            self._kept.keep(kept)
        if not told:
            return await self._whole(request, kept)
        kept.work = work = asyncio.create_task(self._produce(kept))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        if body.stream:
            return EventStream(_followed(kept, 0), lambda: None if kept.background else live.handle.cancel(_GONE))
        return JSONResponse(kept.response)

    async def read(self, request: Request, user: User) -> Response | EventStream:
        """Answer `GET /v1/responses/ID`; with `stream=true` follow it, from `starting_after` on."""
        kept = self._kept.find(request.path_params["id"], user)
        if request.query_params.get("stream") != "true":
            return JSONResponse(kept.response)
        after = request.query_params.get("starting_after", "-1")
        if not after.lstrip("-").isdigit() or len(after) > 9:
            raise invalid(f"starting_after={after[:20]!r} is no number of an event", "starting_after")
        if not kept.background:
            raise invalid("only a response in the background can be followed again", "stream")
        return EventStream(_followed(kept, max(0, int(after) + 1)), lambda: None)

    async def items(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/responses/ID/input_items`."""
        kept = self._kept.find(request.path_params["id"], user)
        data = [{"id": f"{kept.id}-{place}", **item} for place, item in enumerate(kept.given)][::-1]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})

    async def delete(self, request: Request, user: User) -> Response:
        """Answer `DELETE /v1/responses/ID`."""
        name = request.path_params["id"]
        self._kept.forget(name, user)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/responses/ID/cancel`. One that is over is returned as it is."""
        kept = self._kept.find(request.path_params["id"], user)
        if not kept.background:
            raise invalid("only a response in the background can be cancelled: close the connection of any other")
        if not kept.over and kept.work is not None:
            kept.live.handle.cancel("cancelled by the client")
            await asyncio.wait([kept.work])
        return JSONResponse(kept.response)

    def _conversation(self, body: ResponseBody, user: User) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all messages, and the items that are new."""
        given = body.input if isinstance(body.input, list) else messages_of(body.input)
        new = messages_of(body.input)
        if body.previous_response_id is None:
            return new, [{"type": "message", **each} if "type" not in each else each for each in given]
        before = self._kept.find(body.previous_response_id, user, "previous_response_id")
        if not before.over or before.response["status"] not in ("completed", "incomplete"):
            raise invalid(f"response {before.id} is {before.response['status']}: there is nothing to go on from",
                          "previous_response_id")  # fmt: skip
        said = messages_of(before.response["output"])
        return [*before.conversation, *said, *new], [
            {"type": "message", **each} if "type" not in each else each for each in given
        ]

    async def _whole(self, request: Request, kept: Kept) -> Response:
        handle = kept.live.handle
        try:
            answer = await unless_gone(request.receive, handle.finished, lambda: handle.cancel(_GONE))
            if answer is None:
                kept.response["status"] = "cancelled"
                return Response(status_code=499)
            Assembly(kept.response, kept.live.asked.must_call).end(answer, kept.live.asked.steps)
            gave_nothing(answer, kept.live.asked.must_call)
            return JSONResponse(kept.response)
        finally:
            self._over(kept)

    async def _produce(self, kept: Kept) -> None:
        """Follow a run to its end, whoever else does."""
        assembly = Assembly(kept.response, kept.live.asked.must_call)
        try:
            for event in assembly.begin():
                kept.add(event)
            async for news in tell(kept.live.handle, kept.live.asked.steps):
                for event in assembly.take(news):
                    kept.add(event)
        except Exception as error:  # the driver broke down
            kept.response.update(status="failed", error={"code": "server_error", "message": str(error)})
            raise
        finally:
            self._over(kept)

    def _over(self, kept: Kept) -> None:
        kept.over = True
        kept.told()
        self._kept.settle(kept)


async def _followed(kept: Kept, first: int) -> AsyncGenerator[bytes, None]:
    async for event in kept.follow(first):
        yield event


def _response(live: Live, body: ResponseBody) -> dict[str, Any]:
    """Return the object of a response that has just begun."""
    given = body.model_dump(mode="json", by_alias=True, exclude_none=True)
    form = given.get("text") or {}
    return {
        "id": f"resp_{live.handle.run}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **form},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"strict": None, **each} for each in given.get("tools", [])],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }
