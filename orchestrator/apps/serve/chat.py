"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...core.result import Usage
from ...runtime.client.answer import Answer
from .bodies import ChatBody
from .errors import ApiError, unsupported
from .http import EventStream, apart, read, sse, unless_gone
from .service import Service
from .telling import (
    AnswerText,
    Ended,
    StepBegan,
    StepEnded,
    StepSaid,
    Thought,
    Told,
    gave_nothing,
    step_of,
    tell,
    tokens_of,
    written,
)
from .tenants import ServedRun, User

__all__ = ["ChatCompletions"]


class ChatCompletions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request, user: User) -> Response | EventStream:
        """Answer a request."""
        body = await read(request, ChatBody, self._service.settings)
        body.check()
        lives = await self._started(body, user)
        live = lives[0]
        request.scope["plait.run"], request.scope["plait.ignored"] = live.handle.run, live.ignored
        if len(lives) > 1:
            return await _several(request, lives)
        gone = partial(live.handle.cancel, cause="client-gone")
        if body.stream:
            return EventStream(_chunks(live, body), gone)
        answer = await unless_gone(request.receive, live.handle.finished, gone)
        if answer is None:
            return Response(status_code=499)
        if answer.value is None or live.must_call:
            gave_nothing(answer, live.must_call)
        return JSONResponse(_completion(live, answer), headers={"x-request-id": live.handle.run})

    async def _started(self, body: ChatBody, user: User) -> list[ServedRun]:
        """Start a run for each choice. Raises `ApiError`, and then none is left."""
        service, lives = self._service, list[ServedRun]()
        request = await apart(body.size, body.request, service.strategy(body.model, user))
        many = body.n not in (None, 1)
        if many and (body.plait.plan is not None or service.allowed(request, None, user).planner.name != "single"):
            raise unsupported("n", "several choices are made with the planner `single` alone: each is one call of the "
                              "model; plait/sample:n=… samples and votes, in one choice")  # fmt: skip
        # Without a seed of the client's the choices differ too: else all would be the same.
        first = body.seed if body.seed is not None else 1
        try:
            for place in range(body.n or 1):
                await service.counted(user)
                own = request.model_copy(update={"seed": first + place}) if many else request
                lives.append(await service.submit(own, body, user, watch=bool(body.stream)))
        except BaseException:
            for live in lives:
                live.handle.cancel("another choice of the request was refused")
            raise
        return lives


async def _several(request: Request, lives: list[ServedRun]) -> Response:
    """Answer with a choice for each run."""

    def give_up() -> None:
        for live in lives:
            live.handle.cancel(cause="client-gone")

    together = asyncio.gather(*(live.handle.finished for live in lives))
    answers = await unless_gone(request.receive, together, give_up)
    if answers is None:
        return Response(status_code=499)
    for live, answer in zip(lives, answers, strict=True):
        if answer.value is None or live.must_call:
            gave_nothing(answer, live.must_call)
    said = _completion(lives[0], answers[0])
    choices = [_completion(live, answer)["choices"][0] for live, answer in zip(lives, answers, strict=True)]
    said["choices"] = [{**choice, "index": place} for place, choice in enumerate(choices)]
    said["usage"] = chat_usage(sum((answer.usage for answer in answers[1:]), answers[0].usage))
    return JSONResponse(said, headers={"x-request-id": lives[0].handle.run})


def _finish(answer: Answer) -> str:
    """Return why the text ended, as OpenAI says it."""
    return "length" if answer.cut else "tool_calls" if answer.message.tool_calls else "stop"


def _completion(live: ServedRun, answer: Answer) -> dict[str, Any]:
    turn = answer.message
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if not turn.tool_calls:
        message["content"] = turn.text
    else:
        message["tool_calls"] = [call.model_dump(mode="json") for call in turn.tool_calls]
    if turn.reasoning and live.thoughts:
        message["reasoning_content"] = turn.reasoning
    told = None if live.likeliest is None else {"content": tokens_of(answer), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": told, "finish_reason": _finish(answer)}
    return {
        "id": _id(live),
        "object": "chat.completion",
        "created": int(live.began),
        "model": live.model,
        "choices": [choice],
        "usage": chat_usage(answer.usage),
        "plait": _said_of(live, answer),
    }


def _said_of(live: ServedRun, answer: Answer) -> dict[str, Any]:
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
    if live.steps:
        said["steps"] = [{**step_of(step), "text": written(step)} for step in answer.trace if step.kind != "join"]
    return said


def _id(live: ServedRun) -> str:
    return f"chatcmpl-{live.handle.run}"


async def _chunks(live: ServedRun, body: ChatBody) -> AsyncGenerator[bytes, None]:
    head = {
        "id": _id(live),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": live.model,
    }
    counted = {"usage": None} if body.stream_options is not None and body.stream_options.include_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return sse({**head, "choices": [choice], **counted, **more})

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    async for news in tell(live.handle, live.steps):
        if not isinstance(news, Ended):
            if live.thoughts or not isinstance(news, Thought):
                yield _piece(news, chunk)
            continue
        try:
            news.check(live.must_call)
            content = None if live.likeliest is None else tokens_of(news.answer)
        except ApiError as error:
            yield sse(error.body())
            return
        for place, call in enumerate(news.answer.message.tool_calls):
            yield chunk({"tool_calls": [{"index": place, **call.model_dump(mode="json")}]})
        said = None if content is None else {"content": content, "refusal": None}
        yield chunk({}, _finish(news.answer), said, plait=_said_of(live, news.answer))
        if counted:
            yield sse({**head, "choices": [], "usage": chat_usage(news.answer.usage)})
    yield b"data: [DONE]\n\n"


def _piece(news: Told, chunk: Any) -> bytes:
    match news:
        case AnswerText(text):
            return chunk({"content": text})
        case Thought(text):
            return chunk({"reasoning_content": text})
        case StepSaid(step, text):
            return chunk({"reasoning_content": text}, plait={"step": {"id": step}})
        case StepBegan(step) | StepEnded(step):
            return chunk({}, plait={"step": step_of(step)})
        case _:
            raise AssertionError(news)


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a run in the form of chat completions; `cancelled_tokens` is ours."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.thoughts,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "cancelled_tokens": usage.cancelled,
        },
    }
