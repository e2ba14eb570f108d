"""`/v1/responses`: create (also streamed or in the background), read, follow, cancel and continue responses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from plait.core.errors import PlaitError
from plait.core.ops import Plugin
from plait.runtime.client.answer import Answer

from .bodies import MAX_MESSAGES, ServedStrategy
from .conversations import SUMMARY_PREFIX, read_items
from .dialect import write_stream
from .errors import ApiError, invalid
from .http import EventStream, apart, read, unless_disconnected
from .response_body import ResponseBody
from .response_store import StoredResponse, size_of
from .response_writer import ResponseWriter
from .server_info import input_tokens
from .service import Service
from .stored_completions import list_inputs
from .stream_events import ChoiceBuilder, ChoiceFailed, stream_choices
from .tenants import ServedRun, User

_SUMMARY = """\
All messages above but the user's are removed. Write down briefly what is needed to continue without them: findings \
with names and numbers, decisions with reasons, failures, and open points."""
CANCEL_TIMEOUT_S = 20.0
"""Seconds to wait for the end of a cancelled run of another process before its present state is returned."""
_START_S = 30.0  # a run that no journal has after this time was lost: its process was killed before it wrote the start


class ResponsesApi:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.responses
        self._work: set[asyncio.Task[None]] = set()
        service.on_run_taken_over = self.continue_run

    async def create(self, request: Request, user: User) -> Response | EventStream:
        """Answer `POST /v1/responses`."""
        body = await read(request, ResponseBody, self._service.settings)
        body.check()
        conversation, given = await self._conversation(body, user)
        service = self._service
        await service.count_request(user)
        if len(conversation) > MAX_MESSAGES:
            raise invalid(f"the conversation has come to {len(conversation)} messages, and {MAX_MESSAGES} are the most")
        strategy, output = service.strategy(body.model, user), list[dict[str, Any]]()
        prepared = await apart(body.is_long, body.request_after, conversation, strategy)
        limit = body.context_management[0].compact_threshold if body.context_management else None
        if limit and (await input_tokens(service, prepared, user))["input_tokens"] > limit:
            conversation, *output, _ = await self._compact(request, body, conversation, user)
            prepared = await apart(body.is_long, body.request_after, [*conversation, *read_items(output)], strategy)
        is_followed = bool(body.stream or body.background)
        live = await service.submit(prepared, body, user, watch=is_followed)
        request.scope["plait.run"], request.scope["plait.ignored"] = live.handle.run, live.ignored
        response = {**await apart(body.is_long, _new_response, live, body), "output": output}
        stored = StoredResponse(response, user, live, conversation, given, bool(body.background),
                    steps=live.steps, must_call=live.must_call, model=live.model, likeliest=live.likeliest,
                    given_bytes=await apart(body.is_long, size_of, conversation))  # fmt: skip
        is_stored = body.store is not False
        if is_stored:
            await self._store.add(stored)
        if not is_followed:
            return await self._whole(request, stored, live)
        self._follow_run(stored, live)
        if body.stream:
            return EventStream(
                stored.follow(), lambda: None if stored.background else live.handle.cancel(cause="client-gone")
            )
        return JSONResponse(stored.response)

    async def count(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/responses/input_tokens`."""
        body = await read(request, ResponseBody, self._service.settings)
        body.check()
        conversation, _ = await self._conversation(body, user)
        prepared = await apart(body.is_long, body.request_after, conversation, self._service.strategy(body.model, user))
        return JSONResponse({"object": "response.input_tokens", **await input_tokens(self._service, prepared, user)})

    async def compact(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/responses/compact`."""
        body = await read(request, ResponseBody, self._service.settings)
        body.check()
        conversation, _ = await self._conversation(body, user)
        await self._service.count_request(user)
        kept, item, response = await self._compact(request, body, conversation, user)
        output = [_write_message(f"msg_{place}", message) for place, message in enumerate(kept)]
        return JSONResponse({**response, "object": "response.compaction", "output": [*output, item]})

    async def _compact(
        self, request: Request, body: ResponseBody, conversation: list[dict[str, Any]], user: User
    ) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
        """Return the messages that stay, an item with the summary that a run of its own writes, and its response."""
        asked = ResponseBody(model=body.model, instructions=body.instructions, session_id=body.session_id)
        strategy = ServedStrategy(Plugin(name="single"), (), self._service.strategy(body.model, user).model)
        messages = [*conversation, {"role": "user", "content": _SUMMARY}]
        prepared = await apart(body.is_long, asked.request_after, messages, strategy)
        live = await self._service.submit(prepared, asked, user, watch=False)
        request.scope["plait.run"] = live.handle.run
        stored = StoredResponse(_new_response(live, asked), user, live, conversation, [], False)
        if (await self._whole(request, stored, live)).status_code != 200:
            raise ApiError(499, "The client has disconnected.")
        parts = [part for item in stored.response["output"] if item["type"] == "message" for part in item["content"]]
        if not (text := "".join(part["text"] for part in parts).strip()):
            raise ApiError(502, "The model wrote no summary. Send the request again.", retry=True)
        item = {"type": "compaction", "id": f"cmp_{live.handle.run}", "encrypted_content": SUMMARY_PREFIX + text}
        kept = [message for message in conversation if message["role"] not in ("assistant", "tool")]
        return kept, item, stored.response

    async def read(self, request: Request, user: User) -> Response | EventStream:
        """Answer `GET /v1/responses/ID`; with `stream=true` follow it, from `starting_after` on."""
        stored = await self._current(request.path_params["id"], user)
        if request.query_params.get("stream") != "true":
            return await asyncio.to_thread(JSONResponse, stored.response)
        after = request.query_params.get("starting_after", "-1")
        if not after.lstrip("-").isdigit() or len(after) > 9:
            raise invalid(f"starting_after={after[:20]!r} is not the number of an event", "starting_after")
        if not stored.background:
            raise invalid("only a response in the background can be followed again", "stream")
        first = max(0, int(after) + 1)
        here = stored.events or stored.live is not None
        return EventStream(stored.follow(first) if here else self._store.follow(stored, first), lambda: None)

    async def items(self, request: Request, user: User) -> Response:
        """Answer `GET /v1/responses/ID/input_items`."""
        stored = await self._store.find(request.path_params["id"], user)
        return await asyncio.to_thread(list_inputs, stored, newest=True)

    async def delete(self, request: Request, user: User) -> Response:
        """Answer `DELETE /v1/responses/ID`."""
        name = request.path_params["id"]
        await self._store.delete(name, user)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request, user: User) -> Response:
        """Answer `POST /v1/responses/ID/cancel`. A response that has ended is returned unchanged."""
        stored = await self._current(request.path_params["id"], user)
        if not stored.background:
            raise invalid("only a response in the background can be cancelled: close the connection of any other")
        if not stored.over and stored.work is not None and stored.live is not None:
            stored.live.handle.cancel("cancelled by the client")
            await asyncio.wait([stored.work])
        elif not stored.over:
            await self._service.send_order(stored.run, "cancel", value="cancelled by the client")
            stored = await self._store.wait_until_over(stored, CANCEL_TIMEOUT_S)
        return JSONResponse(stored.response)

    async def _current(self, name: str, user: User) -> StoredResponse:
        """Return the current state of a response. One whose process ended between its run's end and its own is ended
        here."""
        stored = await self._store.find(name, user)
        if stored.over or stored.live is not None or stored.work is not None:
            return stored
        status = await self._service.read_status(stored.run)
        age_s = time.time() - stored.response["created_at"]
        if status in ("running", None) or (status == "unknown" and age_s < _START_S):
            return stored
        if status == "interrupted":
            if not self._service.pooled:
                message = f"its process ended: `plait runs resume {stored.run}` finishes the run"
                stored.response.update(status="failed", error={"code": "server_error", "message": message})
            return stored
        try:
            answer = await self._service.orchestrator.resume(stored.run)
        except PlaitError:  # its journal could not be written, or its process was killed before it was
            reason = "its run was lost, and no journal holds its end: send the request again"
            stored.response.update(status="failed", error={"code": "server_error", "message": reason})
        else:
            _fill_response(stored, answer)
        await self._store.add(stored)
        self._complete(stored)
        return stored

    async def continue_run(self, live: ServedRun) -> None:
        """Continue the response of a run that was taken over from another process, if it has one. Its events begin
        again."""
        stored = await self._store.load(f"resp_{live.handle.run}", live.user)
        if stored is None or stored.over:
            return
        stored.live = live
        before = [item for item in stored.response["output"] if item["type"] == "compaction"]  # no part of the run
        stored.response.update(output=before, status="in_progress")
        live.steps, live.model = stored.steps, stored.model
        await self._store.add(stored)
        self._follow_run(stored, live)

    def _follow_run(self, stored: StoredResponse, live: ServedRun) -> None:
        """Follow a run in the background."""
        stored.work = work = asyncio.create_task(self._write_events(stored, live))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        if stored.background:
            writing = asyncio.create_task(self._store.write_events(stored))
            self._work.add(writing)
            writing.add_done_callback(self._work.discard)

    async def _conversation(self, body: ResponseBody, user: User) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all messages, and the items that are new."""
        new = read_items(body.input)
        given = body.input if isinstance(body.input, list) else new
        items = [item if "type" in item else {"type": "message", **item} for item in given]
        if body.previous_response_id is None:
            return new, items
        before = await self._store.find(body.previous_response_id, user, "previous_response_id")
        before = before if before.over else await self._current(before.id, user)
        if not before.over or before.response["status"] not in ("completed", "incomplete"):
            raise invalid(f"response {before.id} is {before.response['status']}: it cannot be continued",
                          "previous_response_id")  # fmt: skip
        return [*before.conversation, *read_items(before.response["output"]), *new], items

    async def _whole(self, request: Request, stored: StoredResponse, live: ServedRun) -> Response:
        handle = live.handle
        try:
            answer = await unless_disconnected(
                request.receive, handle.finished, lambda: handle.cancel(cause="client-gone")
            )
            if answer is None:
                stored.response["status"] = "cancelled"
                return Response(status_code=499)
            if (error := _fill_response(stored, answer)) is not None:
                raise error
            stored.over = True
            if stored in self._store:
                await self._store.write(stored)
            return await asyncio.to_thread(JSONResponse, stored.response)
        finally:
            self._complete(stored)

    async def _write_events(self, stored: StoredResponse, live: ServedRun) -> None:
        """Follow a run to its end, also if others follow it."""
        try:
            async for event in write_stream(ResponseWriter(stored.response), stream_choices([live])):
                # Before the last event is sent: a server that is killed then must not lose what it has confirmed.
                if stored.response["status"] not in ("queued", "in_progress") and stored in self._store:
                    with contextlib.suppress(ApiError):  # the client gets its answer also if it cannot be stored
                        await self._store.write(stored)
                stored.add(event)
        except Exception as error:  # the driver broke down
            stored.response.update(status="failed", error={"code": "server_error", "message": str(error)})
            raise
        finally:
            self._complete(stored)

    def _complete(self, stored: StoredResponse) -> None:
        stored.over = True
        stored.notify()
        self._store.complete(stored)


def _fill_response(stored: StoredResponse, answer: Answer) -> ApiError | None:
    """Fill in the response of a run that has ended; return why it failed."""
    writer = ResponseWriter(stored.response)
    reasoning = stored.live is None or stored.live.thoughts
    build = ChoiceBuilder(reasoning=reasoning, must_call=stored.must_call, logprobs=stored.likeliest is not None)
    for event in build.replay(answer, stored.steps):
        for _ in writer.add(0, event):
            pass
        if isinstance(event, ChoiceFailed):
            return event.error
    return None


def _write_message(name: str, message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    content = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"type": "message", "id": name, **message, "content": content}


def _echo_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"strict": None, **tool} if tool["type"] == "function" else tool


def _new_response(live: ServedRun, body: ResponseBody) -> dict[str, Any]:
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
        "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **form},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_echo_tool(tool) for tool in given.get("tools", [])],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }
