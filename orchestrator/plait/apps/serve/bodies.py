"""The bodies of requests: what OpenAI's clients send, checked, and the `Request` that each makes.

The body's model name, or its field `plait`, selects planner, policies and model. `fields.py` lists how each field is
treated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr

from ...core.budget import Budget
from ...core.errors import PluginError
from ...core.ops import Plugin
from ...core.plan import Plan
from ...core.request import Request
from ...core.values import Frozen
from .admission import BodyBytes
from .client_tools import ClientTools, ResponseTool, ToolBody, parse_choice
from .conversations import read_chat_messages
from .errors import ApiError, invalid, not_found, unsupported
from .fields import row_of, shown, tells
from .forms import FormFields

__all__ = ["PREFIX", "Body", "ChatBody", "ResponseBody", "ServedStrategy", "resolve"]

PREFIX = "plait/"
AUTO = "auto"
"""In the name of a model: the planner that chooses a planner."""
MESSAGES = 2_000
TOOLS = 1_000
BIASES = 4_000
STOPS = 64
"""Maximum number of each in a body: far more than clients send, and few enough that a request is made in milliseconds.
"""
LARGE = 8 << 10
"""Bytes of a body from which on a request is made of it on a thread."""
_SHORT = frozenset(
    ("model", "messages", "input", "prompt", "instructions", "system", "stream", "stream_options", "temperature",
     "top_p", "top_k", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stop", "user")
)  # fmt: skip
"""Fields that take little time if they have few bytes. Others may take long: plans, schemas, regular expressions."""
_ROLE_AND_TEXT = frozenset(("role", "content"))
_MORE = re.compile(r"\+(?=[a-z][a-z0-9.-]*(?:[:+]|$))")
"""Where a policy begins: `sample:n=16+consensus`."""


@dataclass(frozen=True, slots=True)
class ServedStrategy:
    """What the name of a model asks for."""

    planner: Plugin | None = None
    policies: tuple[Plugin, ...] = ()
    model: str | None = None
    """The model that answers; `None`: any."""


class PlaitField(Frozen):
    """The field `plait` of a body: what OpenAI's fields have no words for."""

    planner: str | Plugin | None = None
    """As in the name of a model: `sample:n=16`."""
    policies: tuple[str | Plugin, ...] | None = None
    merge: str | Plugin | None = None
    n: int | None = Field(default=None, ge=1)
    task: str | Plugin | None = None
    plan: Plan | None = None
    """A finished plan, in the place of a planner's."""
    budget: Budget | None = None
    steps: bool = False
    """Whether the branches are streamed: as reasoning, with the ids of their steps."""


class Body(FormFields):
    """What all bodies say. What of them is no field here is passed on, ignored or refused (`fields.py`)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=False)
    endpoint: ClassVar[str] = ""
    """Whose body it is, in the ledger of fields."""

    model: str = Field(min_length=1, max_length=2000)
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None
    tool_choice: str | dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    plait: PlaitField = PlaitField()
    stop: str | Annotated[list[str], Field(max_length=STOPS)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, Field(max_length=BIASES)] = None
    # Of vLLM and its kin:
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    chat_template_kwargs: dict[str, JsonValue] | None = None
    thinking_token_budget: int | None = Field(default=None, ge=0)
    include_reasoning: bool = True
    cache_salt: str | None = Field(default=None, max_length=1000)
    priority: int | None = None
    session_id: str | None = Field(default=None, max_length=200)

    _size: int = PrivateAttr(0)
    _bytes: BodyBytes | None = PrivateAttr(None)

    @property
    def long(self) -> bool:
        """Whether making a request from it may take long."""
        return self._size >= LARGE or not self.model_fields_set <= _SHORT

    @property
    def bytes_held(self) -> BodyBytes | None:
        """Its bytes as they are counted for the tenant."""
        return self._bytes

    def tell_size(self, size: int, held: BodyBytes | None = None) -> None:
        """Say how many bytes the body had as it came."""
        self._size, self._bytes = size, held

    def settle(self, strict: bool) -> None:
        """Raise `ApiError` for a field that is refused; with `strict` also for one that would be ignored and that
        OpenAI does not have."""
        for name, _ in self._told():
            row = row_of(name, self.endpoint)
            if row is None:
                if strict:
                    raise invalid(f"unknown parameter: {name[:80]!r}", name[:80], "unknown_parameter")
            elif row.fate == "refused" or (strict and row.fate == "ignored" and name in (self.model_extra or {})):
                raise unsupported(name, f"`{name}` is not taken here: {row.note}")

    @property
    def passed(self) -> dict[str, Any]:
        """Fields for the upstream, as they are."""
        told = ((name, value, row_of(name, self.endpoint)) for name, value in self._told())
        return {name: value for name, value, row in told if row is not None and row.fate == "passed on"}

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of fields that ask for something and change nothing."""
        rows = ((name, row_of(name, self.endpoint)) for name, _ in self._told())
        unread = [name for name, row in rows if row is None or row.fate == "ignored"]
        tools = self.client_tools
        return shown([*unread, *(["tools.format"] if tools.tools and tools.has_unenforced_grammar else [])])

    @property
    def client_tools(self) -> ClientTools:
        """The tools that it offers. Raises `ApiError`."""
        return ClientTools()

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of the tools that take any text."""
        tools = self.client_tools
        return tools.custom if tools.tools else frozenset()

    @property
    def stored(self) -> bool:
        """Whether the answer is to be kept, to be read again."""
        return False

    def _told(self) -> list[tuple[str, Any]]:
        extra, given = self.model_extra or {}, self.model_fields_set
        declared = ((name, getattr(self, name)) for name in type(self).model_fields if name in given)
        return [(name, value) for name, value in (*declared, *extra.items()) if tells(name, value)]

    def _request(
        self,
        messages: Sequence[Mapping[str, Any]],
        strategy: ServedStrategy,
        offered: ClientTools,
        generation: Mapping[str, object],
        output: dict[str, JsonValue] | None,
        begin: str = "",
    ) -> Request:
        extra = self.plait
        choice, allowed = (None, None) if self.tool_choice is None else parse_choice(self.tool_choice)
        formed = not self.model_fields_set.isdisjoint(FormFields.model_fields)
        sampled = ("temperature", "top_p", "min_p", "repetition_penalty", "chat_template_kwargs")
        return Request.of(
            {
                "messages": list(messages) or None,
                "planner": extra.planner or strategy.planner,
                "policies": (strategy.policies or None) if extra.policies is None else extra.policies,
                "model": strategy.model,
                "merge": extra.merge,
                "n": extra.n,
                "task": extra.task,
                "budget": extra.budget,
                "seed": self.seed,
                "metadata": self.metadata,
                "session": self.session_id,
                "salt": self.cache_salt,
                "priority": self.priority,
                "output": self.output_form if output is None and formed else output,
                "form": self.text_form if formed else None,
                "tools": list(offered.functions(allowed)) if offered.tools else [],
                "tool_choice": choice,
                "parallel_tool_calls": self.parallel_tool_calls,
                "begin": begin,
                "generation": {
                    name: value
                    for name, value in {
                        **{name: getattr(self, name) for name in sampled},
                        "top_k": self.top_k if self.top_k != -1 else 0,  # vLLM's word for all
                        "thinking_tokens": self.thinking_token_budget,
                        "presence_penalty": self.presence_penalty,
                        "frequency_penalty": self.frequency_penalty,
                        "logit_bias": self.logit_bias,
                        "stop": self.stop or None,
                        **generation,
                    }.items()
                    if value is not None
                },
            }
        )


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

    @property
    def schema_of(self) -> dict[str, JsonValue] | None:
        """The JSON schema that the answer must have; `None` for any text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None:
            raise invalid("response_format of type json_schema needs `json_schema`", "response_format.json_schema")
        return self.json_schema.schema_


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    include_usage: bool = False


class ChatBody(Body):
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
    # Of OpenAI's, but not read:
    modalities: JsonValue = None
    audio: JsonValue = None
    prediction: JsonValue = None
    web_search_options: JsonValue = None
    functions: JsonValue = None
    function_call: JsonValue = None
    user: JsonValue = None
    safety_identifier: JsonValue = None
    service_tier: JsonValue = None
    prompt_cache_key: JsonValue = None
    prompt_cache_retention: JsonValue = None
    prompt_cache_options: JsonValue = None
    moderation: JsonValue = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("`top_logprobs` goes with `logprobs: true`", "top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream_options` goes with `stream: true`", "stream_options")
        if self.tools or self.tool_choice is not None:
            self.client_tools.check(self.tool_choice)

    @property
    def client_tools(self) -> ClientTools:
        """The tools that it offers. Raises `ApiError`."""
        return ClientTools.of(self.tools) if self.tools else ClientTools()

    @property
    def stored(self) -> bool:
        """Whether the answer is to be kept, to be read again."""
        return self.store is True

    def request(self, strategy: ServedStrategy) -> Request:
        """Return the request for the planner and the model that the body's model name selects."""
        generation = {
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "reasoning_effort": self.reasoning_effort,
            "top_logprobs": self.top_logprobs or 0 if self.logprobs else None,
        }
        output = None if self.response_format is None else self.response_format.schema_of
        messages, begin = self._begun()
        return self._request(messages, strategy, self.client_tools, generation, output, begin)

    def _begun(self) -> tuple[list[dict[str, Any]], str]:
        """Return the messages, and the text that the answer continues."""
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


class TextFormat(BaseModel):
    """`text.format` of a response."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")


class TextConfig(BaseModel):
    """`text` of a response."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", frozen=True)
    format: TextFormat | None = None


LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for them."""


class ResponseBody(Body):
    """The body of `POST /v1/responses`."""

    endpoint = "responses"
    input: str | Annotated[list[dict[str, Any]], Field(max_length=MESSAGES)] = ""
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    background: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool] | None, Field(max_length=TOOLS)] = None
    include: list[str] | None = None
    stream_options: JsonValue = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    reasoning: dict[str, JsonValue] | None = None
    # Of OpenAI's, but not read:
    conversation: JsonValue = None
    prompt: JsonValue = None
    image: JsonValue = None
    max_tool_calls: JsonValue = None
    user: JsonValue = None
    safety_identifier: JsonValue = None
    service_tier: JsonValue = None
    prompt_cache_key: JsonValue = None
    prompt_cache_retention: JsonValue = None
    prompt_cache_options: JsonValue = None
    moderation: JsonValue = None
    context_management: JsonValue = None
    access_programs: JsonValue = None
    background_options: JsonValue = None
    truncation: JsonValue = None

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        if self.background and self.store is False:
            raise invalid("a response in the background has to be stored: leave `store` out", "store")
        if self.tools or self.tool_choice is not None:
            self.client_tools.check(self.tool_choice)
        if not self.input and self.previous_response_id is None and self.plait.plan is None:
            raise ApiError(400, "`input` is missing", param="input", code="missing_required_parameter")

    def request(self, messages: Sequence[Mapping[str, Any]], strategy: ServedStrategy) -> Request:
        """Return the request for a conversation, with the planner and the model that the body's model name selects."""
        effort = (self.reasoning or {}).get("effort")
        likeliest = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        generation = {
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": effort if isinstance(effort, str) else None,
            "top_logprobs": self.top_logprobs or 0 if likeliest else None,
        }
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages, begin = self._begun(messages)
        return self._request([*first, *messages], strategy, self.client_tools, generation, self.schema_of, begin)

    @property
    def client_tools(self) -> ClientTools:
        """The tools that it offers. Raises `ApiError`."""
        return ClientTools.of(self.tools) if self.tools else ClientTools()

    def _begun(self, messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, and the text that the answer continues: a last assistant message that is marked as
        incomplete, as in vLLM."""
        last = self.input[-1] if isinstance(self.input, list) and self.input else {}
        beginning = messages[-1] if messages else {}
        partial = last.get("status") in ("in_progress", "incomplete") and last.get("role") == "assistant"
        if not partial or not isinstance(beginning.get("content"), str) or len(messages) < 2:
            return messages, ""
        return messages[:-1], beginning["content"]

    @property
    def schema_of(self) -> dict[str, JsonValue] | None:
        """The JSON schema that the answer must have; `None` for any text."""
        form = self.text.format if self.text is not None else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "object"}
        if form.schema_ is None:
            raise invalid("text.format of type json_schema needs `schema`", "text.format.schema")
        return form.schema_


def resolve(name: str, aliases: Mapping[str, str], served: Collection[str], any_name: bool) -> ServedStrategy:
    """Return the strategy that the name of a model selects.

    Args:
        name: `plait/PLANNER:option=value+POLICY@MODEL`, an alias, or the name of a model.
        aliases: other names, each once.
        served: models that the workers have.
        any_name: whether a worker takes any name.

    An empty name selects the server's default. Raises `ApiError` for an unknown name.
    """
    if not name:
        return ServedStrategy()
    alias = aliases.get(name, name)
    if not alias.startswith(PREFIX):
        if alias in served or any_name:
            return ServedStrategy(model=alias if alias in served else None)
        raise _no_model(name, served, aliases)
    plan, at, model = alias.removeprefix(PREFIX).rpartition("@")
    plan, model = (plan, model) if at else (model, "")
    if model and model not in served and not any_name:
        raise _no_model(model, served, aliases)
    try:
        first, *policies = map(Plugin.of, _MORE.split(plan))
        if first == Plugin(name=AUTO):
            first = Plugin(name="route")
    except PluginError as error:
        raise invalid(f"model {name!r}: {error}", "model") from None
    return ServedStrategy(first, tuple(policies), model or None)


def _no_model(name: str, served: Collection[str], aliases: Mapping[str, str]) -> ApiError:
    known = ", ".join(sorted({*served, *aliases})[:20])
    message = f"there is no model {name!r} here; there are: {known} (or plait/PLANNER@MODEL)"
    return not_found(message, "model", "model_not_found")
