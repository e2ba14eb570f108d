"""`POST /v1/messages`: Anthropic's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from plait.core.chat import MessageToolCall
from plait.core.request import Request
from plait.core.tools.calls import loads
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .bodies import MAX_MESSAGES, MAX_STOPS, MAX_TOOLS, BodyTable, ServedStrategy, body_with, read_path
from .client_tools import NAME, FunctionTool, parse_choice
from .conversations import read_blocks
from .dialect import ApiDialect, Record, describe_answer, describe_step
from .errors import ApiError, invalid
from .structured_output import ClientObject
from .tenants import ServedRun

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ClientTool(ClientObject):
    """A tool that the client runs."""

    type: str | None = None
    name: str = Field(pattern=NAME)
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = None

    @property
    def offered(self) -> list[FunctionTool]:
        """What is offered: nothing for a tool that Anthropic's server runs. Anthropic's models know the arguments of
        the tools that a client runs by their type."""
        schema, about = self.input_schema, self.description
        if self.type not in (None, "custom"):
            known = _TYPED_TOOLS.get(str(self.type).rpartition("_")[0])
            if known is None:
                return []
            about, names = known
            arguments: JsonValue = {name: _ARGUMENTS.get(name, {"type": "string"}) for name in names.split()}
            schema = {"type": "object", "properties": arguments}
        return [FunctionTool(name=self.name, description=about, parameters=schema)]


_EDITS = "command path file_text old_str new_str insert_line insert_text view_range"
_TYPED_TOOLS = {
    "bash": ("Run a command in a shell that keeps its state.", "command restart"),
    "text_editor": ("View, create and edit files: `command` is view, create, str_replace or insert.", _EDITS),
    "memory": ("Read and write files in /memories: `command` is view, create, str_replace, insert, delete or rename.",
               f"{_EDITS} old_path new_path"),
}  # fmt: skip
"""Description and arguments of the tools that Anthropic names by a type and a date, and that a client runs."""
_ARGUMENTS: dict[str, JsonValue] = {
    "restart": {"type": "boolean"},
    "insert_line": {"type": "integer"},
    "view_range": {"type": "array", "items": {"type": "integer"}},
}
"""Arguments of these tools that are not texts."""


class ThinkingConfig(ClientObject):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1)


class OutputFormat(ClientObject):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(ClientObject):
    """`output_config`."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(
    body_with(
        "container mcp_servers cache_control context_management service_tier speed inference_geo diagnostics "
        "user_profile_id workspace_id"
    )
):
    """The body of `POST /v1/messages/count_tokens`, and the base of the body of `POST /v1/messages`."""

    table = BodyTable(
        "messages", {"reasoning_effort": "output_config.effort"}, answer_format=("output_config.format", "schema_")
    )
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)
    """Read by `read_blocks`."""
    system: str | list[dict[str, Any]] | None = None
    tools: Annotated[list[ClientTool] | None, Field(max_length=MAX_TOOLS)] = None
    max_tokens: int | None = Field(default=None, ge=1)
    stop_sequences: Annotated[list[str] | None, Field(max_length=MAX_STOPS)] = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        choice = self.tool_choice or {"type": "auto"}
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind not in ("auto", "any", "tool", "none"):
            raise invalid("tool_choice must be auto, any, tool or none", "tool_choice")
        self.client_tools.check(choice if kind == "tool" else parse_choice(choice)[0])

    def read_sampling(self) -> dict[str, object]:
        """Return the sampling fields of a request."""
        kind = read_path(self, "thinking.type")
        tokens = read_path(self, "thinking.budget_tokens") if kind == "enabled" else None
        return {
            **super().read_sampling(),
            # theirs counts the thoughts too
            "max_tokens": None if self.max_tokens is None else max(1, self.max_tokens - (tokens or 0)),
            "stop": self.stop_sequences or None,
            "thinking": {"enabled": "on", "disabled": "off"}.get(kind),
            "thinking_tokens": tokens,
        }

    def read_conversation(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, and the text that the answer continues. Raises `ApiError`."""
        messages = read_blocks(self.system, self.messages)
        last = messages[-1]
        if last["role"] == "assistant" and not last["tool_calls"]:
            return messages[:-1], last["content"]
        return messages, ""

    def request(self, strategy: ServedStrategy) -> Request:
        """Return the request for the planner and the model that the body's model name selects. Raises `ApiError`."""
        choice = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        serial = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") is True else {}
        return super().request(strategy).updated(serial)


class MessagesBody(CountBody):
    """The body of `POST /v1/messages`."""

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.max_tokens is None:
            raise invalid("`max_tokens` is missing", "max_tokens", "missing_required_parameter")
        super().check()


class Messages(ApiDialect):
    """Anthropic's messages. In a stream each step is a block of thoughts of its own."""

    path, name, body_type = "/v1/messages", "messages", MessagesBody

    @classmethod
    def error(cls, error: ApiError) -> Record:
        """Return an error in this format; `code` and `param` are OpenAI's."""
        kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        fields = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
        return {"type": "error", "error": fields, "request_id": None}

    def whole(self, choices: Sequence[ev.ServedChoice]) -> Record:
        """Return the message of a run that has ended."""
        (choice,) = choices
        content = [_block(part) for part in choice.parts]
        message = {**_message(choice.run), "content": content, "stop_reason": _stop_reason(choice.answer)}
        return {**message, **_usage(choice.answer), "plait": describe_answer(choice.answer, choice.run.steps)}

    def begin(self) -> Iterator[Record]:
        """Yield the message without its content."""
        usage = {"input_tokens": 0, "output_tokens": 0}
        yield {"type": "message_start", "message": {**_message(self.runs[0]), "content": [], "usage": usage}}

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Record]:
        """Yield the records of an event."""
        match event:
            case ev.PartBegan(part):
                yield {"type": "content_block_start", "index": part.index, "content_block": _block(part, begins=True)}
            case ev.PartDelta(part, text):
                kind, field = _DELTAS[type(part)]
                delta = {"type": kind, field: text}
                yield {"type": "content_block_delta", "index": part.index, "delta": delta}
            case ev.PartEnded(part):
                yield {"type": "content_block_stop", "index": part.index}
            case ev.QuestionAsked(question):
                yield {"type": "ping", "plait": {"question": question.model_dump(mode="json")}}
            case ev.ChoiceEnded(answer):
                delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
                plait = describe_answer(answer, self.runs[0].steps)
                yield {"type": "message_delta", "delta": delta, **_usage(answer), "plait": plait}
            case ev.ChoiceFailed(error=error):
                yield {"type": "error", "error": self.error(error)["error"]}
            case _:
                pass

    def end(self) -> Iterator[Record]:
        """Yield the end of the message."""
        yield {"type": "message_stop"}


_DELTAS = {
    ev.AnswerText: ("text_delta", "text"),
    ev.ReasoningPart: ("thinking_delta", "thinking"),
    ev.StepPart: ("thinking_delta", "thinking"),
    ev.CallPart: ("input_json_delta", "partial_json"),
}


def _block(part: ev.AnswerPart, begins: bool = False) -> Record:
    """Return the block of a part; `begins`: as it is before its first delta."""
    match part:
        case ev.CallPart(call=call):
            arguments = {} if begins else _read_arguments(call)
            return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}
        case ev.AnswerText():
            return {"type": "text", "text": part.text, **({} if begins else {"citations": None})}
        case _:
            step = {"plait": describe_step(part.step)} if isinstance(part, ev.StepPart) else {}
            return {"type": "thinking", "thinking": part.text, "signature": "", **step}


def _read_arguments(call: MessageToolCall) -> Record:
    """Return the arguments of a call as an object. Text of the model that is not an object is kept as `arguments`."""
    arguments = loads(call.function.arguments)
    return arguments if isinstance(arguments, dict) else {"arguments": call.function.arguments}


def _message(run: ServedRun) -> Record:
    name = f"msg_{run.handle.run}"
    return {"id": name, "type": "message", "role": "assistant", "model": run.model, "stop_reason": None,
            "stop_sequence": None}  # fmt: skip


def _stop_reason(answer: Answer) -> str:
    return "max_tokens" if answer.cut else "tool_use" if answer.message.tool_calls else "end_turn"


def _usage(answer: Answer) -> Record:
    """Return the tokens of a run in this format, which counts cached ones apart."""
    usage = answer.usage
    counts = {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.thoughts},
    }
    return {"usage": counts}
