"""`POST /v1/completions`: a text that the model goes on from, without roles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue

from ...core.request import Request
from ...runtime.client.answer import Answer
from .bodies import Body, ServedStrategy, StreamOptions
from .chat import chat_usage
from .errors import ApiError, invalid, unsupported
from .http import sse
from .offered import ClientTools
from .service import said_of, used
from .telling import AnswerText, Ended, tell_each, tokens_of
from .tenants import ServedRun

__all__ = ["Completions"]

_CHOICES = 128
"""Most choices of one request, over all its prompts."""
_TOKENS = 16
"""`max_tokens` where nothing is said, as OpenAI has it."""


class CompletionBody(Body):
    """The body."""

    endpoint = "completions"
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=_CHOICES)] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=_CHOICES)
    best_of: int | None = None
    echo: bool | None = None
    suffix: JsonValue = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    user: JsonValue = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if not self.prompts:
            raise unsupported("prompt", "prompts are texts here, not token ids: give a string, or a list of them")
        if not all(text.strip() for text in self.prompts):
            raise invalid("`prompt` has a text that is empty: there is nothing to go on from", "prompt")
        if len(self.prompts) * (self.n or 1) > _CHOICES:
            raise invalid(f"that is more than {_CHOICES} choices: ask for fewer, or send several requests", "n")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of", "`best_of` is not supported: ask plait/sample:n=…,merge=best-of for the best")
        if self.echo and self.logprobs is not None:
            raise unsupported("logprobs", "the log-probabilities of a prompt are not known: leave `echo` out")
        if self.tool_choice is not None or self.parallel_tool_calls is not None:
            raise unsupported("tool_choice", "tools go with conversations: /v1/chat/completions")
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream_options` goes with `stream: true`", "stream_options")

    @property
    def prompts(self) -> list[str]:
        """The texts to go on from; empty where they are no texts."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [text for text in given if isinstance(text, str)]

    def asked(self, prompt: str, strategy: ServedStrategy) -> Request:
        """Return what is asked about one prompt."""
        generation = {
            "max_tokens": self.max_tokens or _TOKENS,
            "top_logprobs": self.logprobs,
        }
        task = self.plait.task or {"name": "plain", "options": {"raw": True}}
        return self._request((), strategy, ClientTools(), generation, None).updated({"text": prompt, "task": task})


class Completions:
    """The door."""

    path, name, body = "/v1/completions", "completions", CompletionBody

    def requests(self, body: CompletionBody, strategy: ServedStrategy) -> list[Request]:
        """Return what is asked: each prompt as often as there shall be choices of it."""
        return [asked for prompt in body.prompts for asked in [body.asked(prompt, strategy)] * (body.n or 1)]

    def whole(self, lives: Sequence[ServedRun], answers: Sequence[Answer], body: CompletionBody) -> dict[str, Any]:
        """Return the answer of runs that are over, a choice for each."""
        choices: list[dict[str, Any]] = []
        for place, (live, answer) in enumerate(zip(lives, answers, strict=True)):
            text = _echoed(body, place) + answer.written
            told = None if live.likeliest is None else _logprobs(answer)
            choices.append({"text": text, "index": place, "logprobs": told, "finish_reason": _finish(answer)})
        usage = chat_usage(used(answers))
        return {**_head(lives[0]), "choices": choices, "usage": usage, "plait": said_of(lives[0], answers[0])}

    async def events(self, lives: Sequence[ServedRun], body: CompletionBody) -> AsyncGenerator[bytes, None]:
        """Yield the answer while it is written; pieces of several choices as they come."""
        head = _head(lives[0])
        counted = {"usage": None} if body.stream_options is not None and body.stream_options.include_usage else {}
        answers: list[Answer] = []

        def chunk(place: int, text: str, finish: str | None = None, told: Any = None, **more: Any) -> bytes:
            choice = {"text": text, "index": place, "logprobs": told, "finish_reason": finish}
            return sse({**head, "choices": [choice], **counted, **more})

        for place in range(len(lives) if body.echo else 0):
            yield chunk(place, _echoed(body, place))
        async for place, news in tell_each(lives, raw=True):
            if isinstance(news, AnswerText):
                yield chunk(place, news.text)
            if not isinstance(news, Ended):  # of branches there is nothing to say in this form
                continue
            live, answer = lives[place], news.answer
            try:
                news.check()
                told = None if live.likeliest is None else _logprobs(answer)
            except ApiError as error:
                yield sse(error.body())
                return
            answers.append(answer)
            yield chunk(place, "", _finish(answer), told, plait=said_of(live, answer))
        if counted:
            yield sse({**head, "choices": [], "usage": chat_usage(used(answers))})
        yield b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return an error in this form."""
        return error.body()


def _head(live: ServedRun) -> dict[str, Any]:
    name = f"cmpl-{live.handle.run}"
    return {"id": name, "object": "text_completion", "created": int(live.began), "model": live.model}


def _echoed(body: CompletionBody, place: int) -> str:
    return body.prompts[place // (body.n or 1)] if body.echo else ""


def _finish(answer: Answer) -> str:
    return "length" if answer.cut else "stop"


def _logprobs(answer: Answer) -> dict[str, Any]:
    """Return the tokens in the form of completions: a list for each of what is known of them."""
    tokens, offsets, at = tokens_of(answer), list[int](), 0
    for token in tokens:
        offsets.append(at)
        at += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens],
        "text_offset": offsets,
    }
