"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from ...core.request import Request
from ...core.result import Usage
from ...runtime.client.answer import Answer
from .bodies import ChatBody, ServedStrategy
from .errors import ApiError
from .http import sse
from .offered import call_of
from .service import said_of, used
from .telling import (
    AnswerText,
    Ended,
    StepBegan,
    StepEnded,
    StepSaid,
    Thought,
    Told,
    step_of,
    tell_each,
    tokens_of,
)
from .tenants import ServedRun

__all__ = ["ChatCompletions"]


class ChatCompletions:
    """The door."""

    path, name, body = "/v1/chat/completions", "chat", ChatBody

    def requests(self, body: ChatBody, strategy: ServedStrategy) -> list[Request]:
        """Return what is asked, once for each choice."""
        return [body.request(strategy)] * (body.n or 1)

    def whole(self, lives: Sequence[ServedRun], answers: Sequence[Answer], body: ChatBody) -> dict[str, Any]:
        """Return the answer of runs that are over, a choice for each."""
        live, answer, custom = lives[0], answers[0], body.custom_tools
        both = enumerate(zip(lives, answers, strict=True))
        return {
            "id": _id(live),
            "object": "chat.completion",
            "created": int(live.began),
            "model": live.model,
            "choices": [_choice(*pair, place, custom) for place, pair in both],
            "usage": chat_usage(used(answers)),
            "plait": said_of(live, answer),
        }

    async def events(self, lives: Sequence[ServedRun], body: ChatBody) -> AsyncGenerator[bytes, None]:
        """Yield the answer while it is written; pieces of several choices as they come."""
        head = {
            "id": _id(lives[0]),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": lives[0].model,
        }
        counted = {"usage": None} if body.stream_options is not None and body.stream_options.include_usage else {}
        answers, custom = list[Answer](), body.custom_tools

        def chunk(
            place: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None, **more: Any
        ) -> bytes:
            choice = {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            return sse({**head, "choices": [choice], **counted, **more})

        for place in range(len(lives)):
            yield chunk(place, {"role": "assistant", "content": "", "refusal": None})
        async for place, news in tell_each(lives):
            live = lives[place]
            if not isinstance(news, Ended):
                if live.thoughts or not isinstance(news, Thought):
                    yield _piece(news, partial(chunk, place))
                continue
            answer = news.answer
            try:
                news.check(live.must_call)
                content = None if live.likeliest is None else tokens_of(answer)
            except ApiError as error:
                yield sse(error.body())
                return
            answers.append(answer)
            for number, call in enumerate(answer.message.tool_calls):
                yield chunk(place, {"tool_calls": [{"index": number, **call_of(call, custom)}]})
            logprobs = None if content is None else {"content": content, "refusal": None}
            yield chunk(place, {}, _finish(answer), logprobs, plait=said_of(live, answer))
        if counted:
            yield sse({**head, "choices": [], "usage": chat_usage(used(answers))})
        yield b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return an error in this form."""
        return error.body()


def _finish(answer: Answer) -> str:
    """Return why the text ended, as OpenAI says it."""
    return "length" if answer.cut else "tool_calls" if answer.message.tool_calls else "stop"


def _choice(live: ServedRun, answer: Answer, place: int, custom: frozenset[str]) -> dict[str, Any]:
    turn = answer.message
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if not turn.tool_calls:
        message["content"] = turn.text
    else:
        message["tool_calls"] = [call_of(call, custom) for call in turn.tool_calls]
    if turn.reasoning and live.thoughts:
        message["reasoning_content"] = turn.reasoning
    told = None if live.likeliest is None else {"content": tokens_of(answer), "refusal": None}
    return {"index": place, "message": message, "logprobs": told, "finish_reason": _finish(answer)}


def _id(live: ServedRun) -> str:
    return f"chatcmpl-{live.handle.run}"


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
