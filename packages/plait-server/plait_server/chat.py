"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue

from plait.core.request import Request
from plait.core.result import Usage
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .bodies import MAX_MESSAGES, MAX_TOOLS, BodyTable, ServedStrategy, StreamOptions, body_with
from .client_tools import ToolBody, to_chat_call
from .conversations import read_chat_messages
from .dialect import ApiDialect, Record, describe_answer, describe_step, sum_usage
from .errors import invalid
from .structured_output import ClientObject
from .tenants import ServedRun

TURN_SEPARATOR = "\n\n"
"""Text between the turns of an agent."""
_ROLE_AND_TEXT = frozenset(("role", "content"))


class FormatJson(ClientObject):
    """`response_format.json_schema`."""

    name: str = "answer"
    schema_: dict[str, JsonValue] = Field(default={}, alias="schema")


class ResponseFormat(ClientObject):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: FormatJson | None = None


class ChatBody(
    body_with(
        "modalities audio prediction web_search_options functions function_call user safety_identifier service_tier "
        "prompt_cache_key prompt_cache_retention prompt_cache_options moderation"
    )
):
    """The body of `POST /v1/chat/completions`."""

    table = BodyTable(
        "chat", {"reasoning_effort": "reasoning_effort"}, answer_format=("response_format", "json_schema.schema_")
    )
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)
    """Read by the core (`plait.core.chat`)."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolBody] | None, Field(max_length=MAX_TOOLS)] = None
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
        super().check()

    @property
    def is_stored(self) -> bool:
        """Whether the answer is to be kept, to be read again."""
        return self.store is True

    def read_sampling(self) -> dict[str, object]:
        """Return the sampling fields of a request."""
        likeliest = self.top_logprobs or 0 if self.logprobs else None
        most = self.max_completion_tokens or self.max_tokens
        return {**super().read_sampling(), "max_tokens": most, "top_logprobs": likeliest}

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


class ChunkDialect(ApiDialect):
    """What the two APIs for completions have in common: chunks, usage and the last line of a stream."""

    typed, done = False, b"data: [DONE]\n\n"
    prefix: ClassVar[str]
    """Of ids."""
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, runs: Sequence[ServedRun], body: Any) -> None:
        super().__init__(runs, body)
        options = body.stream_options
        self._tail: Record = {"usage": None} if options is not None and options.include_usage else {}
        self._answers: list[Answer] = []

    def end(self) -> Iterator[Record]:
        """Yield the usage, if the client wants it."""
        if self._tail:
            yield {**self._head(self.chunk_object), "choices": [], "usage": _usage(sum_usage(self._answers))}

    def chunk(self, choice: Record, ended: Answer | None = None, **more: Any) -> Record:
        """Return a chunk of one choice; `ended`: the answer of its run, in the last chunk."""
        if ended is not None:
            self._answers.append(ended)
            more["plait"] = describe_answer(ended, self.runs[0].steps)
        return {**self._head(self.chunk_object), "choices": [choice], **self._tail, **more}

    def complete(self, choices: Sequence[ev.ServedChoice], made: list[Record]) -> Record:
        """Return the answer of runs that have ended, with a choice made for each."""
        answers = [choice.answer for choice in choices]
        plait = describe_answer(answers[0], self.runs[0].steps)
        return {**self._head(self.object), "choices": made, "usage": _usage(sum_usage(answers)), "plait": plait}

    def _head(self, name: str) -> Record:
        run = self.runs[0]
        return {"id": f"{self.prefix}-{run.handle.run}", "object": name, "created": int(run.began), "model": run.model}


class ChatCompletions(ChunkDialect):
    """Chat completions."""

    path, name, body_type = "/v1/chat/completions", "chat", ChatBody
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @classmethod
    def read_requests(cls, body: ChatBody, strategy: ServedStrategy) -> list[Request]:
        """Return the requests of a body, one per choice."""
        return [body.request(strategy)] * (body.n or 1)

    def whole(self, choices: Sequence[ev.ServedChoice]) -> Record:
        """Return the answer of runs that have ended, a choice for each."""
        made = [
            _choice(place, {"message": _message(choice, self._custom)}, choice.answer, choice.tokens)
            for place, choice in enumerate(choices)
        ]
        return self.complete(choices, made)

    def begin(self) -> Iterator[Record]:
        """Yield the role of each choice."""
        for place in range(len(self.runs)):
            yield self._delta(place, {"role": "assistant", "content": "", "refusal": None})

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Record]:
        """Yield the records of an event of the choice at a position."""
        match event:
            case ev.PartDelta(ev.AnswerText(), text):
                yield self._delta(place, {"content": text})
            case ev.PartBegan(ev.AnswerText(follows=True)):
                yield self._delta(place, {"content": TURN_SEPARATOR})
            case ev.PartDelta(ev.ReasoningPart(), text):
                yield self._delta(place, _reasoning(text))
            case ev.PartDelta(ev.StepPart(id=step), text):
                yield self._delta(place, _reasoning(text), plait={"step": {"id": step}})
            case ev.PartBegan(ev.StepPart(step=step)) | ev.PartEnded(ev.StepPart(step=step)):
                yield self._delta(place, {}, plait={"step": describe_step(step)})
            case ev.PartBegan(ev.CallPart(call=call) as part) if not self._is_custom(part):
                function = {"name": call.function.name, "arguments": ""}
                yield self._call(place, part, {"id": call.id, "type": "function", "function": function})
            case ev.PartDelta(ev.CallPart() as part, text) if not self._is_custom(part):
                yield self._call(place, part, {"function": {"arguments": text}})
            case ev.PartEnded(ev.CallPart(call=call) as part) if self._is_custom(part):
                yield self._call(place, part, to_chat_call(call, self._custom))
            case ev.QuestionAsked(question):
                yield self._delta(place, {}, plait={"question": question.model_dump(mode="json")})
            case ev.ChoiceEnded(answer, tokens):
                yield self.chunk(_choice(place, {"delta": {}}, answer, tokens), answer)
            case ev.ChoiceFailed(error=error):
                yield error.body()
            case _:
                pass

    def _is_custom(self, part: ev.CallPart) -> bool:
        return part.call.function.name in self._custom

    @cached_property
    def _custom(self) -> frozenset[str]:
        return self.body.client_tools.custom

    def _call(self, place: int, part: ev.CallPart, call: Record) -> Record:
        return self._delta(place, {"tool_calls": [{"index": part.number, **call}]})

    def _delta(self, place: int, delta: Record, **more: Any) -> Record:
        return self.chunk(_choice(place, {"delta": delta}), **more)


def _choice(place: int, content: Record, ended: Answer | None = None, tokens: list[Record] | None = None) -> Record:
    logprobs = None if tokens is None else {"content": tokens, "refusal": None}
    finish = None
    if ended is not None:
        finish = "length" if ended.cut else "tool_calls" if ended.message.tool_calls else "stop"
    return {"index": place, **content, "logprobs": logprobs, "finish_reason": finish}


def _message(choice: ev.ServedChoice, custom: frozenset[str]) -> Record:
    message: Record = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["tool_calls"] = [to_chat_call(call, custom) for call in choice.calls]
    return {**message, **_reasoning(choice.reasoning)} if choice.reasoning else message


def _reasoning(text: str) -> Record:
    """Return reasoning by both names that clients read: DeepSeek's, and that of newer servers."""
    return {"reasoning_content": text, "reasoning": text}


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
