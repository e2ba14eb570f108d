"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...core.plan import Function
from ...runtime.client.answer import Answer
from .asked import Wishes, functions
from .bodies import ChatBody
from .errors import ApiError
from .http import EventStream, read, sse, unless_gone
from .live import Live
from .service import Service, no_text
from .telling import (
    Ended,
    Said,
    StepBegan,
    StepEnded,
    StepSaid,
    Told,
    chat_usage,
    gave_nothing,
    step_of,
    tell,
    text_of,
    was_cut,
    written,
)
from .tenants import User

__all__ = ["ChatCompletions"]

_GONE = "the client went away"


class ChatCompletions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, user: User) -> Response | EventStream:
        """Answer a request."""
        body = await read(request, ChatBody, self._service.settings)
        body.check()
        live = await self._start(body, user)
        request.scope["plait.run"] = live.handle.run
        if body.stream:
            return EventStream(_chunks(live, body), lambda: live.handle.cancel(_GONE))
        answer = await unless_gone(request.receive, live.handle.finished, lambda: live.handle.cancel(_GONE))
        if answer is None:
            return Response(status_code=499)
        gave_nothing(answer)
        return JSONResponse(_completion(live, answer), headers={"x-request-id": live.handle.run})

    async def _start(self, body: ChatBody, user: User) -> Live:
        service = self._service
        wishes = Wishes(
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stops=body.stops,
            schema=None if body.response_format is None else body.response_format.schema_of,
            tools=_functions(body),
            tool_choice=body.tool_choice,
        )
        made = service.ask(body, body.messages, wishes, user)
        no_text(made.text, body.plait)
        return await service.submit(made, body.plait, user, watch=bool(body.stream))


def _functions(body: ChatBody) -> tuple[Function, ...]:
    if body.tool_choice == "none":
        return ()
    return tuple(functions(each.function.model_dump()) for each in body.tools or () if each.function)


def _finish(answer: Answer) -> str:
    """Return why the text ended, as OpenAI says it."""
    return "length" if was_cut(answer) else "stop"


def _completion(live: Live, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text_of(answer), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return {
        "id": _id(live),
        "object": "chat.completion",
        "created": int(live.began),
        "model": live.asked.model,
        "choices": [choice],
        "usage": chat_usage(answer.usage),
        "plait": _said_of(live, answer),
    }


def _said_of(live: Live, answer: Answer) -> dict[str, Any]:
    """Return what OpenAI's form has no place for."""
    said: dict[str, Any] = {
        "run": answer.run,
        "status": answer.status,
        "answer": answer.answer,
        "verified": answer.verified,
        "why": answer.why,
        "critical_path_tokens": answer.critical_path_tokens,
        "seconds": round(answer.seconds, 4),
    }
    if live.asked.steps:
        said["steps"] = [{**step_of(step), "text": written(step)} for step in answer.trace if step.kind != "join"]
    return said


def _id(live: Live) -> str:
    return f"chatcmpl-{live.handle.run}"


async def _chunks(live: Live, body: ChatBody) -> AsyncGenerator[bytes, None]:
    head = {
        "id": _id(live),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": live.asked.model,
    }
    counted = {"usage": None} if body.stream_options is not None and body.stream_options.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**head, "choices": [choice], **counted, **more})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    async for news in tell(live.handle, live.asked.steps):
        if not isinstance(news, Ended):
            yield _piece(news, chunk)
            continue
        try:
            news.check()
        except ApiError as error:
            yield sse(error.body())
            return
        yield chunk({}, _finish(news.answer), plait=_said_of(live, news.answer))
        if counted:
            yield sse({**head, "choices": [], "usage": chat_usage(news.answer.usage)})
    yield b"data: [DONE]\n\n"


def _piece(news: Told, chunk: Any) -> bytes:
    match news:
        case Said(text):
            return chunk({"content": text})
        case StepSaid(step, text):
            return chunk({"reasoning_content": text}, plait={"step": {"id": step}})
        case StepBegan(step) | StepEnded(step):
            return chunk({}, plait={"step": step_of(step)})
        case _:
            raise AssertionError(news)
