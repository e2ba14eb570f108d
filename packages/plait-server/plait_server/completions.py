"""`POST /v1/completions`: a text that the model continues, without roles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, JsonValue

from plait.core.request import Request
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .bodies import Body, BodyTable, ServedStrategy, StreamOptions
from .chat import TURN_SEPARATOR, ChunkDialect
from .dialect import Record
from .errors import invalid, unsupported

_CHOICES = 128
"""Maximum number of choices of one request, over all its prompts."""
_TOKENS = 16
"""Default of `max_tokens`, the same as OpenAI's."""


class CompletionBody(Body):
    """The body."""

    table = BodyTable("completions", {"max_tokens": "token_limit", "top_logprobs": "logprobs"})
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=_CHOICES)] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=None, ge=0)
    n: int | None = Field(default=None, ge=1, le=_CHOICES)
    best_of: int | None = None
    echo: bool | None = None
    suffix: JsonValue = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    user: JsonValue = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if not all(text.strip() if isinstance(text, str) else text for text in self.all_prompts):
            raise invalid("`prompt` contains an empty text; every prompt needs at least one character", "prompt")
        if len(self.all_prompts) * (self.n or 1) > _CHOICES:
            raise invalid(f"that is more than {_CHOICES} choices: ask for fewer, or send several requests", "n")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of", "`best_of` is not supported: ask plait/sample:n=…,merge=best-of for the best")
        if self.max_tokens == 0 and not self.needs_tokens:
            raise invalid("`max_tokens` is 0, and the answer needs at least one: 0 goes with `echo` and `logprobs`",
                          "max_tokens")  # fmt: skip
        if self.tool_choice is not None or self.parallel_tool_calls is not None:
            raise unsupported("tool_choice", "tools go with conversations: /v1/chat/completions")
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream_options` goes with `stream: true`", "stream_options")

    @property
    def all_prompts(self) -> Sequence[str | list[int]]:
        """The prompts, each as a text or as token ids."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given

    @property
    def prompts(self) -> list[str]:
        """The prompts that are texts."""
        return [text for text in self.all_prompts if isinstance(text, str)]

    @property
    def needs_tokens(self) -> bool:
        """Whether only the model itself can answer: prompts are ids, or their log-probabilities are wanted."""
        return len(self.prompts) < len(self.all_prompts) or bool(self.echo and self.logprobs is not None)

    @property
    def asks_for_tokens(self) -> bool:
        """As for all bodies, or if only the model itself can answer."""
        return self.needs_tokens or super().asks_for_tokens

    @property
    def token_limit(self) -> int:
        """`max_tokens`, or OpenAI's default. 0 is for a prompt that is only read."""
        return _TOKENS if self.max_tokens is None else self.max_tokens

    def echoed(self, place: int) -> str:
        """Return the prompt of the choice at a position, if the client wants it back."""
        return self.prompts[place // (self.n or 1)] if self.echo else ""


class Completions(ChunkDialect):
    """Completions."""

    path, name, body_type = "/v1/completions", "completions", CompletionBody
    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"
    raw = True

    @classmethod
    def read_requests(cls, body: CompletionBody, strategy: ServedStrategy) -> list[Request]:
        """Return the requests of a body: each prompt once per choice."""
        task = body.plait.task or {"name": "plain", "options": {"raw": True}}
        request = body.request(strategy)
        made = [request.updated({"text": prompt, "task": task}) for prompt in body.prompts]
        return [request for request in made for _ in range(body.n or 1)]

    def whole(self, choices: Sequence[ev.ServedChoice]) -> Record:
        """Return the answer of runs that have ended, a choice for each."""
        made = [
            _choice(place, self.body.echoed(place) + (choice.text or ""), choice.answer, choice.tokens)
            for place, choice in enumerate(choices)
        ]
        return self.complete(choices, made)

    def begin(self) -> Iterator[Record]:
        """Yield the prompts, if the client wants them."""
        for place in range(len(self.runs) if self.body.echo else 0):
            yield self.chunk(_choice(place, self.body.echoed(place)))

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Record]:
        """Yield the records of an event of the choice at a position. This format has no place for steps."""
        match event:
            case ev.PartBegan(ev.AnswerText(follows=True)):
                yield self.chunk(_choice(place, TURN_SEPARATOR))
            case ev.PartDelta(ev.AnswerText(), text):
                yield self.chunk(_choice(place, text))
            case ev.QuestionAsked(question):
                yield self.chunk(_choice(place, ""), plait={"question": question.model_dump(mode="json")})
            case ev.ChoiceEnded(answer, tokens):
                yield self.chunk(_choice(place, "", answer, tokens), answer)
            case ev.ChoiceFailed(error=error):
                yield error.body()
            case _:
                pass


def _choice(place: int, text: str, ended: Answer | None = None, tokens: list[Record] | None = None) -> Record:
    logprobs = None if tokens is None else _logprobs(tokens)
    finish = None if ended is None else "length" if ended.cut else "stop"
    return {"text": text, "index": place, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(tokens: list[Record]) -> Record:
    """Return the tokens in the form of completions: a list for each of what is known of them."""
    offsets, at = list[int](), 0
    for token in tokens:
        offsets.append(at)
        at += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens],
        "text_offset": offsets,
    }
