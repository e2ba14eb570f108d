"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from plait.core.result import Usage
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .answers import describe_answer, describe_step, sum_usage
from .bodies import MESSAGES, TOOLS, StreamOptions, body_with, read_schema
from .client_tools import ToolBody, to_chat_call
from .conversations import read_chat_messages
from .dialect import ApiDialect, Record, StreamWriter
from .errors import invalid
from .tenants import ServedRun

__all__ = ["ChatBody", "ChatCompletions", "ChunkWriter", "whole_completion"]

_ROLE_AND_TEXT = frozenset(("role", "content"))


class FormatJson(BaseModel):
    """`response_format.json_schema`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    name: str = "answer"
    schema_: dict[str, JsonValue] = Field(default={}, alias="schema")


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: FormatJson | None = None


class ChatBody(
    body_with(
        "modalities audio prediction web_search_options functions function_call user safety_identifier service_tier "
        "prompt_cache_key prompt_cache_retention prompt_cache_options moderation"
    )
):
    """The body of `POST /v1/chat/completions`."""

    endpoint = "chat"
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MESSAGES)
    """Read by the core (`plait.core.chat`)."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolBody] | None, Field(max_length=TOOLS)] = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning_effort: str | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    store: bool | None = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("`top_logprobs` goes with `logprobs: true`", "top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream_options` goes with `stream: true`", "stream_options")
        if self.tools or self.tool_choice is not None:
            self.client_tools.check(self.tool_choice)

    @property
    def stored(self) -> bool:
        """Whether the answer is to be kept, to be read again."""
        return self.store is True

    def read_sampling(self) -> dict[str, object]:
        """Return the sampling fields that this dialect has under other names."""
        return {
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "reasoning_effort": self.reasoning_effort,
            "top_logprobs": self.top_logprobs or 0 if self.logprobs else None,
        }

    @property
    def answer_schema(self) -> dict[str, JsonValue] | None:
        """The JSON schema that the answer must have; `None` for any text. Raises `ApiError`."""
        given = self.response_format
        if given is None:
            return None
        schema = None if given.json_schema is None else given.json_schema.schema_
        return read_schema(given.type, schema, "response_format.json_schema")

    def read_conversation(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, and the text that the answer continues. Raises `ApiError`."""
        messages = self.messages
        if any(message.keys() - _ROLE_AND_TEXT or not isinstance(message.get("content"), str) for message in messages):
            messages = read_chat_messages(messages)  # most have nothing else, and are plain as they are
        if not self.continue_final_message:
            return messages, ""
        *before, last = messages
        beginning = last.get("content")
        if last.get("role") != "assistant" or not isinstance(beginning, str) or last.get("tool_calls") or not before:
            raise invalid("`continue_final_message` goes with a last message of the assistant's that is a text",
                          "continue_final_message")  # fmt: skip
        return before, beginning


class ChatCompletions(ApiDialect):
    """Chat completions."""

    path, name, body = "/v1/chat/completions", "chat", ChatBody

    def whole(self, choices: Sequence[ev.ServedChoice], body: ChatBody) -> Record:
        """Return the answer of runs that have ended, a choice for each."""
        made = [
            _choice(place, {"message": _message(choice, body.custom_tools)}, choice.answer, choice.tokens)
            for place, choice in enumerate(choices)
        ]
        return whole_completion(choices, made, "chatcmpl", "chat.completion")

    def writer(self, runs: Sequence[ServedRun], body: ChatBody) -> ChatWriter:
        """Return the writer of the stream."""
        return ChatWriter(runs, body)


class ChunkWriter(StreamWriter):
    """Makes the chunks of the two APIs for completions."""

    typed, done = False, b"data: [DONE]\n\n"

    prefix: ClassVar[str]
    object: ClassVar[str]

    def __init__(self, runs: Sequence[ServedRun], body: Any) -> None:
        self._runs, self._body, options = runs, body, body.stream_options
        self._head = head_of(runs[0], self.prefix, self.object)
        self._tail: Record = {"usage": None} if options is not None and options.include_usage else {}
        self._answers: list[Answer] = []

    def end(self) -> Iterator[Record]:
        """Yield the usage, if the client wants it."""
        if self._tail:
            yield {**self._head, "choices": [], "usage": _usage(sum_usage(self._answers))}

    def chunk(self, choice: Record, ended: Answer | None = None, **more: Any) -> Record:
        """Return a chunk of one choice; `ended`: the answer of its run, in the last chunk."""
        if ended is not None:
            self._answers.append(ended)
            more["plait"] = describe_answer(ended, self._runs[0].steps)
        return {**self._head, "choices": [choice], **self._tail, **more}


class ChatWriter(ChunkWriter):
    """Makes the chunks of a chat completion."""

    prefix, object = "chatcmpl", "chat.completion.chunk"

    def begin(self) -> Iterator[Record]:
        """Yield the role of each choice."""
        for place in range(len(self._runs)):
            yield self._delta(place, {"role": "assistant", "content": "", "refusal": None})

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Record]:
        """Yield the records of an event of the choice at a position."""
        match event:
            case ev.PartDelta(ev.AnswerText(), text):
                yield self._delta(place, {"content": text})
            case ev.PartDelta(ev.ReasoningPart(), text):
                yield self._delta(place, {"reasoning_content": text})
            case ev.PartDelta(ev.StepPart(id=step), text):
                yield self._delta(place, {"reasoning_content": text}, plait={"step": {"id": step}})
            case ev.PartBegan(ev.StepPart(step=step)) | ev.PartEnded(ev.StepPart(step=step)):
                yield self._delta(place, {}, plait={"step": describe_step(step)})
            case ev.PartEnded(ev.CallPart(call=call, number=number)):
                made = {"index": number, **to_chat_call(call, self._body.custom_tools)}
                yield self._delta(place, {"tool_calls": [made]})
            case ev.ChoiceEnded(answer, tokens):
                yield self.chunk(_choice(place, {"delta": {}}, answer, tokens), answer)
            case ev.ChoiceFailed(error=error):
                yield error.body()
            case _:
                pass

    def _delta(self, place: int, delta: Record, **more: Any) -> Record:
        return self.chunk(_choice(place, {"delta": delta}), **more)


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.cut else "tool_calls" if answer.message.tool_calls else "stop"


def _choice(place: int, content: Record, ended: Answer | None = None, tokens: list[Record] | None = None) -> Record:
    logprobs = None if tokens is None else {"content": tokens, "refusal": None}
    finish = None if ended is None else _finish_reason(ended)
    return {"index": place, **content, "logprobs": logprobs, "finish_reason": finish}


def _message(choice: ev.ServedChoice, custom: frozenset[str]) -> Record:
    message: Record = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["tool_calls"] = [to_chat_call(call, custom) for call in choice.calls]
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    return message


def head_of(run: ServedRun, prefix: str, name: str) -> Record:
    """Return the fields that all objects of a completion begin with."""
    return {"id": f"{prefix}-{run.handle.run}", "object": name, "created": int(run.began), "model": run.model}


def whole_completion(choices: Sequence[ev.ServedChoice], made: list[Record], prefix: str, name: str) -> Record:
    """Return the answer of runs that have ended in the format of the two APIs for completions."""
    run, answers = choices[0].run, [choice.answer for choice in choices]
    return {
        **head_of(run, prefix, name),
        "choices": made,
        "usage": _usage(sum_usage(answers)),
        "plait": describe_answer(answers[0], run.steps),
    }


def _usage(usage: Usage) -> Record:
    """Return the tokens of a run in the format of chat completions; `cancelled_tokens` is ours."""
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
