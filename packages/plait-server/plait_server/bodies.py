"""The bodies of requests: what OpenAI's clients send, checked, and the `Request` that each makes.

The body's model name, or its field `plait`, selects planner, policies and model. `fields.py` lists how each field is
treated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, create_model

from plait.core.budget import Budget
from plait.core.errors import PluginError
from plait.core.ops import Plugin
from plait.core.plan import Plan
from plait.core.request import Request
from plait.core.values import Frozen

from .admission import BodyBytes
from .client_tools import ClientTools, parse_choice
from .errors import ApiError, invalid, not_found, unsupported
from .fields import FORWARDED, find_row, fit_in_header, is_set
from .sessions import conversation_session, normalise_session, session_from_headers
from .structured_output import ClientObject, StructuredOutputFields

PREFIX = "plait/"
AUTO = "auto"
"""In the name of a model: the planner that chooses a planner."""
MAX_MESSAGES = 2_000
MAX_TOOLS = 1_000
MAX_BIASES = 4_000
MAX_STOPS = 64
"""Maximum number of each in a body: far more than clients send, and few enough that a request is made in milliseconds.
"""
LARGE_BODY_BYTES = 8 << 10
"""Bytes of a body from which on a request is made of it on a thread."""
_QUICK_FIELDS = frozenset(
    ("model", "messages", "input", "prompt", "instructions", "system", "stream", "stream_options", "temperature",
     "top_p", "top_k", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stop", "user",
     "session_id", "prompt_cache_key")
)  # fmt: skip
"""Fields that take little time if they have few bytes. Others may take long: plans, schemas, regular expressions."""
TOKEN_FIELDS = frozenset(("return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs"))
"""Fields that only one call of a model can answer."""
_POLICY_START = re.compile(r"\+(?=[a-z][a-z0-9.-]*(?:[:+]|$))")
"""Where a policy begins: `sample:n=16+consensus`."""


@dataclass(frozen=True, slots=True)
class ServedStrategy:
    """The planner and model that a model name selects."""

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


class BodyTable(NamedTuple):
    """Where a dialect has the fields that all requests have."""

    endpoint: str = ""
    """Its name in the ledger of fields."""
    sampling: Mapping[str, str] = {}
    """Sampling fields of a request, and the paths of the fields in the body."""
    answer_format: tuple[str, str] = ("", "")
    """The path of the format of the answer, and in it that of a JSON schema."""


class Body(StructuredOutputFields):
    """What all bodies say. What of them is no field here is passed on, ignored or refused (`fields.py`)."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=False)
    table: ClassVar[BodyTable] = BodyTable()

    model: str = Field(min_length=1, max_length=2000)
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None
    tool_choice: str | dict[str, JsonValue] | None = None
    parallel_tool_calls: bool | None = None
    plait: PlaitField = PlaitField()
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, Field(max_length=MAX_BIASES)] = None
    # Of vLLM and its kin:
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    chat_template_kwargs: dict[str, JsonValue] | None = None
    thinking_token_budget: int | None = Field(default=None, ge=0)
    include_reasoning: bool = True
    cache_salt: str | None = Field(default=None, max_length=1000)
    priority: int | None = None
    session_id: str | None = None

    _size: int = PrivateAttr(0)
    _bytes: BodyBytes | None = PrivateAttr(None)

    def with_session(self, headers: Mapping[str, str]) -> Self:
        """Return the body with the client's session: its own, else that of the headers, else the key of its prompts."""
        own, key = self.session_id or "", getattr(self, "prompt_cache_key", None)
        session = normalise_session(own) if own else session_from_headers(headers)
        if not session and isinstance(key, str) and key:
            session = normalise_session(key)
        return self.model_copy(update={"session_id": session}) if session else self

    @property
    def is_long(self) -> bool:
        """Whether making a request from it may take long."""
        return self._size >= LARGE_BODY_BYTES or not self.model_fields_set <= _QUICK_FIELDS

    @property
    def asks_for_tokens(self) -> bool:
        """Whether it asks for token ids, or for the log-probabilities of its prompt."""
        return not self.stream and not TOKEN_FIELDS.isdisjoint(self.model_extra or ())

    @property
    def bytes_held(self) -> BodyBytes | None:
        """Its bytes, as charged to the tenant."""
        return self._bytes

    def set_size(self, size: int, held: BodyBytes | None = None) -> None:
        """Say how many bytes the body had as it came."""
        self._size, self._bytes = size, held

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        self.client_tools.check(self.tool_choice)

    def check_fields(self, strict: bool) -> None:
        """Raise `ApiError` for a field that is refused; with `strict` also for one that would be ignored and that
        OpenAI does not have."""
        for name, _ in self._given_fields():
            row = find_row(name, self.table.endpoint)
            if row is None:
                if strict:
                    raise invalid(f"unknown parameter: {name[:80]!r}", name[:80], "unknown_parameter")
            elif row.support == "refused" or (strict and row.support == "ignored" and name in (self.model_extra or {})):
                raise unsupported(name, f"`{name}` is not taken here: {row.note}")
        if strict and self.client_tools.dropped:
            kind = self.client_tools.dropped[0]
            raise unsupported("tools", f"a tool of type {kind[:80]!r} is run by another server: leave it out")

    def upstream_fields(self, forwarded: Collection[str]) -> dict[str, Any]:
        """Return the fields for the upstream, as they are; those of `FORWARDED` if they are also in `forwarded`."""
        rows = ((name, value, find_row(name, self.table.endpoint)) for name, value in self._given_fields())
        names = FORWARDED.intersection(forwarded)
        return {name: value for name, value, row in rows if name in names or (row and row.support == "passed on")}

    @property
    def unused_fields(self) -> tuple[str, ...]:
        """Names of fields that ask for something and change nothing."""
        rows = ((name, find_row(name, self.table.endpoint)) for name, _ in self._given_fields())
        unread = [name for name, row in rows if row is None or row.support == "ignored"]
        tools = self.client_tools
        unread += ["tools.format"] if tools.has_unenforced_grammar else []
        return fit_in_header([*unread, *(f"tools.{kind}" for kind in tools.dropped)])

    @property
    def client_tools(self) -> ClientTools:
        """The tools that it offers. Raises `ApiError`."""
        tools = getattr(self, "tools", None) if "tools" in type(self).model_fields else None
        return ClientTools.of(tools) if tools else ClientTools()

    @property
    def is_stored(self) -> bool:
        """Whether the answer is to be kept, to be read again."""
        return False

    def _given_fields(self) -> list[tuple[str, Any]]:
        extra, given = self.model_extra or {}, self.model_fields_set
        declared = ((name, getattr(self, name)) for name in type(self).model_fields if name in given)
        return [(name, value) for name, value in (*declared, *extra.items()) if is_set(name, value)]

    def read_conversation(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, and the text that the answer continues. Raises `ApiError`."""
        return (), ""

    def read_sampling(self) -> dict[str, object]:
        """Return the sampling fields of a request. Dialects override it for values that need more than a table."""
        return {
            **{name: getattr(self, name) for name in _SAMPLING},
            "top_k": 0 if self.top_k == -1 else self.top_k,  # vLLM's number for all
            "thinking_tokens": self.thinking_token_budget,
            "stop": self.stop or None,
            **{name: read_path(self, path) for name, path in self.table.sampling.items()},
        }

    def read_schema(self) -> dict[str, JsonValue] | None:
        """Return the JSON schema that the answer must have; `None` for any text. Raises `ApiError`."""
        where, path = self.table.answer_format
        form = read_path(self, where) if where else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "object"}
        if (schema := read_path(form, path)) is None:
            name = path.partition(".")[0].rstrip("_")
            raise invalid(f"{where} of type json_schema needs `{name}`", f"{where}.{name}")
        return schema

    def request(self, strategy: ServedStrategy) -> Request:
        """Return the request for the planner and the model that the body's model name selects. Raises `ApiError`."""
        extra, (messages, begin) = self.plait, self.read_conversation()
        tools, schema = self.client_tools, self.read_schema()
        choice, allowed = (None, None) if self.tool_choice is None else parse_choice(self.tool_choice)
        formed = not self.model_fields_set.isdisjoint(StructuredOutputFields.model_fields)
        sampling = self.read_sampling()
        return Request.of(
            {
                "messages": list(messages) or None,
                "session": self.session_id or conversation_session(messages),
                "planner": extra.planner or strategy.planner,
                "policies": (strategy.policies or None) if extra.policies is None else extra.policies,
                "model": strategy.model,
                **{name: getattr(extra, name) for name in ("merge", "n", "task", "budget")},
                **{name: getattr(self, field) for name, field in _REQUEST.items()},
                "output": self.output_form if schema is None and formed else schema,
                "form": self.text_form if formed else None,
                "tools": list(tools.functions(allowed)) if tools.tools else [],
                "tool_choice": choice,
                "begin": begin,
                "generation": {name: value for name, value in sampling.items() if value is not None},
            }
        )


_REQUEST = {
    "seed": "seed",
    "metadata": "metadata",
    "salt": "cache_salt",
    "priority": "priority",
    "parallel_tool_calls": "parallel_tool_calls",
}
"""Fields of a request, and of a body."""
_SAMPLING = (
    "temperature", "top_p", "min_p", "repetition_penalty", "chat_template_kwargs", "presence_penalty",
    "frequency_penalty", "logit_bias",
)  # fmt: skip
"""Fields with one name in a body and in a request's sampling."""


def body_with(names: str) -> type[Body]:
    """Return a base for a body whose API also has fields that nothing reads."""
    fields: dict[str, Any] = dict.fromkeys(names.split(), (JsonValue, None))
    return create_model("Body", __base__=Body, **fields)


def read_path(value: Any, path: str) -> Any:
    """Return the field at a path: `text.format`; `None` where a part of the path is not set."""
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


class StreamOptions(ClientObject):
    """`stream_options`."""

    include_usage: bool = False


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
        raise _unknown_model(name, served, aliases)
    plan, at, model = alias.removeprefix(PREFIX).rpartition("@")
    plan, model = (plan, model) if at else (model, "")
    if model and model not in served and not any_name:
        raise _unknown_model(model, served, aliases)
    try:
        first, *policies = map(Plugin.of, _POLICY_START.split(plan))
        if first == Plugin(name=AUTO):
            first = Plugin(name="route")
    except PluginError as error:
        raise invalid(f"model {name!r}: {error}", "model") from None
    return ServedStrategy(first, tuple(policies), model or None)


def _unknown_model(name: str, served: Collection[str], aliases: Mapping[str, str]) -> ApiError:
    known = ", ".join(sorted({*served, *aliases})[:20])
    message = f"there is no model {name!r} here; there are: {known} (or plait/PLANNER@MODEL)"
    return not_found(message, "model", "model_not_found")
