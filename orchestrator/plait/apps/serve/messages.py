"""`POST /v1/messages`: Anthropic's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ...core.request import Request
from ...runtime.client.answer import Answer
from .blocks import blocks_of, conversation_of
from .bodies import MESSAGES, STOPS, TOOLS, Body, ServedStrategy
from .errors import ApiError, invalid, unsupported
from .http import sse
from .offered import NAME, ClientTools, FunctionTool
from .service import said_of
from .telling import AnswerText, Ended, StepBegan, StepEnded, StepSaid, Thought, Told, step_of, tell_each
from .tenants import ServedRun

__all__ = ["CountBody", "Messages", "MessagesBody"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ClientTool(BaseModel):
    """A tool that the client runs."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: str | None = None
    name: str = Field(pattern=NAME)
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = None


class ThinkingConfig(BaseModel):
    """`thinking`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1)


class OutputFormat(BaseModel):
    """`output_config.format`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(BaseModel):
    """`output_config`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(Body):
    """The body of `POST /v1/messages/count_tokens`, and most of that of a message."""

    endpoint = "messages"
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MESSAGES)
    """Read by `conversation_of`."""
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[ClientTool] | None, Field(max_length=TOOLS)] = None
    max_tokens: int | None = Field(default=None, ge=1)
    stop_sequences: Annotated[list[str] | None, Field(max_length=STOPS)] = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    container: JsonValue = None
    mcp_servers: JsonValue = None
    cache_control: JsonValue = None
    context_management: JsonValue = None
    service_tier: JsonValue = None
    speed: JsonValue = None
    inference_geo: JsonValue = None
    diagnostics: JsonValue = None
    user_profile_id: JsonValue = None
    workspace_id: JsonValue = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        for place, tool in enumerate(self.tools or ()):
            if tool.type not in (None, "custom"):
                raise unsupported(f"tools[{place}].type", f"the tool {tool.type!r} is not run here: describe it as one "
                                  "of your own, with `input_schema`")  # fmt: skip
        names = [tool.name for tool in self.tools or ()]
        choice = self.tool_choice or {"type": "auto"}
        if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "tool", "none"):
            raise invalid("tool_choice is none of auto, any, tool, none", "tool_choice")
        if choice["type"] == "tool" and choice.get("name") not in names:
            raise invalid(f"tool_choice names {choice.get('name')!r}, and the tools are {', '.join(names)}",
                          "tool_choice")  # fmt: skip
        if choice["type"] == "any" and not names:
            raise invalid("`tool_choice` goes with `tools`", "tool_choice")

    @property
    def client_tools(self) -> ClientTools:
        """The tools that it offers."""
        return ClientTools(
            tuple(
                FunctionTool(name=tool.name, description=tool.description, parameters=tool.input_schema)
                for tool in self.tools or ()
            )
        )

    def request(self, strategy: ServedStrategy) -> Request:
        """Return what it asks for, of a planner and a model that the name of its model stands for."""
        thinking, config = self.thinking, self.output_config or OutputConfig()
        thoughts = thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None
        most = self.max_tokens
        generation = {
            # theirs counts the thoughts too
            "max_tokens": None if most is None else max(1, most - (thoughts or 0)),
            "stop": self.stop_sequences or None,
            "thinking": {"enabled": "on", "disabled": "off"}.get(thinking.type) if thinking is not None else None,
            "thinking_tokens": thoughts,
            "reasoning_effort": config.effort,
        }
        messages, begin = conversation_of(self.system, self.messages), ""
        last = messages[-1]
        if last["role"] == "assistant" and not last["tool_calls"]:  # its turn is to be gone on from
            messages, begin = messages[:-1], last["content"]
        output = None if config.format is None else config.format.schema_
        asked = self._request(messages, strategy, self.client_tools, generation, output, begin)
        choice = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        return asked.updated({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {})


class MessagesBody(CountBody):
    """The body of `POST /v1/messages`."""

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.max_tokens is None:
            raise invalid("`max_tokens` is missing", "max_tokens", "missing_required_parameter")
        super().check()


class Messages:
    """The door."""

    path, name, body = "/v1/messages", "messages", MessagesBody

    def requests(self, body: MessagesBody, strategy: ServedStrategy) -> list[Request]:
        """Return what is asked."""
        return [body.request(strategy)]

    def whole(self, lives: Sequence[ServedRun], answers: Sequence[Answer], _: MessagesBody) -> dict[str, Any]:
        """Return the message of a run that is over."""
        live, answer = lives[0], answers[0]
        message = {**_message(live), "content": list(_blocks(live, answer)), "stop_reason": _stop(answer)}
        return {**message, "usage": _usage(answer), "plait": said_of(live, answer)}

    async def events(self, lives: Sequence[ServedRun], _: MessagesBody) -> AsyncGenerator[bytes, None]:
        """Yield the message while it is written."""
        live = lives[0]
        usage = {"input_tokens": 0, "output_tokens": 0}
        yield _event("message_start", message={**_message(live), "content": [], "usage": usage})
        writing = _Writing()
        async for _place, news in tell_each(lives):
            if not isinstance(news, Ended):
                for event in writing.take(news) if live.thoughts or not isinstance(news, Thought) else ():
                    yield event
                continue
            answer = news.answer
            try:
                news.check(live.must_call)
            except ApiError as error:
                yield _event("error", error=self.error(error)["error"])
                return
            for event in writing.end(answer, _blocks(live, answer)):
                yield event
            delta = {"stop_reason": _stop(answer), "stop_sequence": None}
            yield _event("message_delta", delta=delta, usage=_usage(answer), plait=said_of(live, answer))
        yield _event("message_stop")

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return an error in this form; `code` and `param` are OpenAI's."""
        kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        fields = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
        return {"type": "error", "error": fields, "request_id": None}


class _Writing:
    """The blocks of a message while it is written. Each branch is a block of thoughts of its own."""

    def __init__(self) -> None:
        self._blocks = 0
        self._open: tuple[str, int] | None = None
        """The block of the answer that is being written: its type and place."""
        self._types: set[str] = set()
        """Of those that were written."""
        self._branches: dict[str, int] = {}

    def take(self, news: Told) -> Iterator[bytes]:
        """Yield what follows from a piece of news."""
        match news:
            case AnswerText(text):
                yield from self._said("text", text)
            case Thought(text):
                yield from self._said("thinking", text)
            case StepBegan(step):
                block = {"type": "thinking", "thinking": "", "signature": "", "plait": step_of(step)}
                self._branches[step.step] = self._blocks
                yield self._began(block)
            case StepSaid(step, text):
                yield _delta(self._branches[step], "thinking", text)
            case StepEnded(step):
                yield _event("content_block_stop", index=self._branches.pop(step.step))
            case _:
                raise AssertionError(news)

    def end(self, answer: Answer, blocks: Iterable[dict[str, Any]]) -> Iterator[bytes]:
        """Yield the rest of an answer's blocks: what has not been told while it was written."""
        for block in blocks:
            kind = block["type"]
            if kind in self._types:
                continue
            if kind == "tool_use":
                yield from self._closed()
                place = self._blocks
                yield self._began({**block, "input": {}})
                arguments = next(
                    call.function.arguments for call in answer.message.tool_calls if call.id == block["id"]
                )
                yield _event(
                    "content_block_delta", index=place, delta={"type": "input_json_delta", "partial_json": arguments}
                )
                yield _event("content_block_stop", index=place)
            else:
                yield from self._said(kind, block[kind])
        yield from self._closed()

    def _said(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open is None or self._open[0] != kind:
            yield from self._closed()
            self._open = kind, self._blocks
            self._types.add(kind)
            yield self._began({"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
        if text:
            yield _delta(self._open[1], kind, text)

    def _began(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _closed(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _event("content_block_stop", index=self._open[1])
            self._open = None


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _delta(place: int, kind: str, text: str) -> bytes:
    return _event("content_block_delta", index=place, delta={"type": f"{kind}_delta", kind: text})


def _message(live: ServedRun) -> dict[str, Any]:
    name = f"msg_{live.handle.run}"
    return {"id": name, "type": "message", "role": "assistant", "model": live.model, "stop_reason": None,
            "stop_sequence": None}  # fmt: skip


def _blocks(live: ServedRun, answer: Answer) -> Iterator[dict[str, Any]]:
    turn = answer.message
    return blocks_of(turn if live.thoughts else turn.model_copy(update={"reasoning": ""}))


def _stop(answer: Answer) -> str:
    return "max_tokens" if answer.cut else "tool_use" if answer.message.tool_calls else "end_turn"


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the tokens of a run in this form, in which cached ones are counted apart."""
    usage = answer.usage
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.thoughts},
    }
