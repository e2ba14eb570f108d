"""The request of a caller: every entry point (SDK, command line, REPL, batch, MCP, server, settings) makes a `Request`.

The settings supply omitted fields. The journalled request (`Submitted`) is complete: the planner's options include `n`,
`merge` and the answer's fields of `generation`. Live objects (functions, a verifier) are kept beside the request.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from operator import not_
from typing import Annotated, Self, cast

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from .budget import Budget
from .chat import Message, read_messages
from .errors import FieldError, UsageError
from .form import Form
from .ops import Function, Plugin
from .rights import Rights
from .sampling import Generation, StructuredOutput
from .tools.tool import is_name
from .values import DEEPEST, Frozen, complaints, is_none, writable

HandOver = Callable[[str, object], Plugin]
"""Registers a plugin that a program passes as an object (an instance, class or function), and returns its name and
options. The first argument is the plugin's kind."""
_KINDS = {"policies": "policy"}
DERIVED_SESSION = "~"
"""First character of a session that a server derived from the beginning of a conversation."""
_LIMITS = ("tokens", "seconds")
"""Limits of the budget that may be given by themselves."""


def as_tuple(name: str, given: object, example: str) -> tuple[object, ...]:
    """Return a sequence argument as a tuple. Raises `UsageError` with an example."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        written = reprlib.repr(cast("object", given))
        raise UsageError(f"{name}={written} is no list: write {example}")
    return tuple(cast("Iterable[object]", given))


def _plugin(given: object, info: ValidationInfo) -> object:
    """Convert a text with a plugin's name and options, a `Plugin`, or a plugin object."""
    if isinstance(given, Plugin | Mapping):
        return cast("object", given)
    if isinstance(given, str) or info.context is None:
        return Plugin.of(given)
    name = info.field_name or ""
    return cast("HandOver", info.context)(_KINDS.get(name, name), given)


def _policies(given: object) -> object:
    return as_tuple("policies", given, f"policies=[{given if isinstance(given, str) else 'fifo'!r}]")


def _budget(given: object) -> Budget | Mapping[str, object]:
    if isinstance(given, str):
        return Budget.of(given)
    if not isinstance(given, Budget | Mapping):
        raise ValueError(f"{reprlib.repr(given)} is no Budget: write budget=Budget(tokens=500)")
    return cast("Budget | Mapping[str, object]", given)


def _form(given: object) -> object:
    if isinstance(given, Form) or (isinstance(given, dict) and "schema_" in given):  # as it is written down
        return cast("object", given)
    return Form.of(cast("object", given))[0]


def _function(given: object) -> object:
    """Accept a function, also in OpenAI's form `{"type": "function", "function": {…}}`."""
    if isinstance(given, Function):
        return given
    fields: Mapping[object, object] = {}
    if isinstance(given, Mapping):
        fields = cast("Mapping[object, object]", given)
    if fields.get("type") == "function" and isinstance(inner := fields.get("function"), Mapping):
        fields = cast("Mapping[object, object]", inner)
    if not fields:
        written = reprlib.repr(cast("object", given))
        raise ValueError(f'{written} is no function: write {{"name": "f", "parameters": {{…}}}}')
    if not is_name(str(fields.get("name"))):
        raise ValueError(f"{fields.get('name')!r:.80} is not a function name")
    return {key: value for key, value in fields.items() if key != "type" and value is not None}


def _names(given: object) -> object:
    return (given,) if isinstance(given, str) else as_tuple("approve", given, 'approve=["write"]')


_Plugin = Annotated[Plugin, BeforeValidator(_plugin)]


_GENERATION = Generation.model_construct()
_RIGHTS = Rights.model_construct()


class Retries(Frozen):
    """Maximum number of retries per kind of step after a retryable failure."""

    think: int = Field(default=2, ge=0)
    call: int = Field(default=1, ge=0)
    lost: int = Field(default=3, ge=0)
    """Retries after a lost worker, counted separately, because the step is not at fault."""
    deaths: int = Field(default=2, ge=2)
    """Maximum number of workers lost in sequence while running the step; then the step fails as the likely cause. A
    worker counts again after the loss of another one, but not if it also ran another such step."""
    backoff: float = Field(default=0.2, ge=0)
    """Seconds before the first retry; each further retry doubles the delay. A step with a lost worker does not wait."""


class Request(Frozen):
    """A request to the orchestrator. The settings supply fields that are omitted or `None`.

    A plugin is given as a name, a text with options, a `Plugin`, an instance or a class. `tokens` and `seconds` set the
    limits of `budget` directly.

    >>> request = Request(text="2 + 2?", planner="sample:n=8", tokens=500)
    >>> request.planner, request.budget
    (Plugin(name='sample', options={'n': 8}), Budget(tokens=500))
    """

    text: str = ""
    """What is asked."""
    messages: tuple[Message, ...] = Field(default=(), exclude_if=not_)
    """The conversation before `text`. A text given with messages is appended as a user message; without a text, the
    last message becomes the text. The conversation precedes the prompts of all chat steps without own messages."""
    asked: bool = Field(default=False, exclude_if=not_)
    """Whether `messages` contain `text`: they end with a message of another role, such as a tool result, and `text` is
    the last user message. A step with just this prompt gets only the conversation. Set when messages are parsed."""
    task: _Plugin = Plugin.model_construct({"name"}, name="plain")
    """Interpretation of the text: the prompt for the model, the extraction and the check of the answer."""
    planner: _Plugin = Plugin.model_construct({"name"}, name="single")
    """The planner, which splits the work."""
    policies: Annotated[tuple[_Plugin, ...], BeforeValidator(_policies)] = ()
    """Policies: their ranks are compared in sequence, the first to name a worker places the step, all may prune."""
    merge: _Plugin | None = Field(default=None, exclude_if=is_none)
    """How branches become one answer, for planners that have this option."""
    n: int | None = Field(default=None, ge=1, exclude_if=is_none)
    """Number of branches, for planners with this option."""
    generation: Generation = Field(default=_GENERATION, exclude_if=(_GENERATION,).__contains__)
    """Generation parameters: `max_tokens`, `temperature` and `top_p` of the answer; all other fields are defaults of
    all model calls."""
    tools: Annotated[
        tuple[Annotated[Function, BeforeValidator(_function)], ...],
        BeforeValidator(lambda given: as_tuple("tools", given, 'tools=[{"name": "f", "parameters": {…}}]')),
    ] = Field(default=(), exclude_if=not_)
    """Functions that the model may call and the caller runs. The answer's message contains the calls."""
    tool_choice: str = Field(default="auto", max_length=64, exclude_if="auto".__eq__)
    """Choice among `functions`: `auto`, `none`, `required`, or the name of the function to call."""
    parallel_tool_calls: bool = Field(default=True, exclude_if=bool)
    """Whether one turn may make several calls."""
    begin: str = Field(default="", max_length=1_000_000, exclude_if=not_)
    """Start of the model's turn in the calls that write the answer (`ModelCall.begin`)."""
    form: StructuredOutput | None = Field(default=None, exclude_if=is_none)
    """Constraint on the text of the calls that write the answer: a regular expression, a grammar, or a choice of texts.
    For JSON, use `output`."""
    output: Annotated[Form | None, BeforeValidator(_form)] = Field(default=None, exclude_if=is_none)
    """Type of a typed answer: a pydantic model, a dataclass, a TypedDict, `list[…]`, or a JSON schema."""
    budget: Annotated[Budget, BeforeValidator(_budget)] = Budget.model_construct()
    """Hard limits, also as a text: `total_tokens=5000,cost=0.5`."""
    default_token_limit: int | None = Field(default=None, ge=1, exclude_if=is_none)
    """Limit of generated tokens per run if `budget` limits neither tokens nor cost. Planners do not see this limit.
    `None`: no limit."""
    value_bytes: int | None = Field(default=None, ge=1, exclude_if=is_none)
    """Maximum bytes of values that the run may combine: values read by joins, and values inserted into prompts and
    arguments. Default: 64 MiB (`plait.core.value_sizes`)."""
    retries: Retries = Retries.model_construct()
    fairness_group: str = Field(default="", max_length=200, exclude_if=not_)
    """Runs of the same group compete for slots as a single run, and run in order of arrival among themselves. Default:
    each run is its own group."""
    fairness_weight: float = Field(default=1.0, ge=0.001, le=1000, exclude_if=(1.0,).__contains__)
    """Weight of the group: weight 2 gets twice the tokens of weight 1 while both groups have waiting steps."""
    priority: int = Field(default=0, ge=-1000, le=1000, exclude_if=not_)
    """Added to the priority of each step. Waiting steps with a smaller number start first, regardless of fairness."""
    seed: int = 0
    """Random seed for all sampling."""
    model: str | None = Field(default=None, exclude_if=is_none)
    """Model for steps that name no model (`ModelCall.model`)."""
    salt: str = Field(default="", exclude_if=not_)
    """Cache salt of all steps without their own (`ModelCall.salt`). Salts isolate tenants."""
    tenant: str = Field(default="", max_length=200, exclude_if=not_)
    """The calling tenant of a server."""
    rights: Rights = Field(default=_RIGHTS, exclude_if=(_RIGHTS,).__contains__)
    """Rights of the run's steps, with any planner. A server sets the rights."""
    session: str = Field(default="", max_length=200, exclude_if=not_)
    """The caller's conversation or job; stored with the run, and sent to the serving stack as the session of its first
    trajectory."""
    approve: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(default=(), exclude_if=not_)
    """Tools whose calls need a person's approval, in addition to tools that declare it: names, `side-effects` (all
    tools with side effects), or `all`."""
    metadata: dict[str, str] = Field(default={}, exclude_if=not_)
    """The caller's own notes; kept with the run."""

    @property
    def bounded(self) -> Budget:
        """The effective limits: `budget`, with `default_token_limit` if it limits neither tokens nor cost.

        >>> Request(default_token_limit=9, seconds=5.0).bounded, Request(default_token_limit=9, tokens=5).bounded
        (Budget(tokens=9, seconds=5.0), Budget(tokens=5))
        """
        budget = self.budget
        if self.default_token_limit is None or (budget.tokens, budget.total_tokens, budget.cost) != (None, None, None):
            return budget
        return budget.model_copy(update={"tokens": self.default_token_limit})

    @classmethod
    def of(cls, fields: Mapping[str, object], hand_over: HandOver | None = None) -> Self:
        """Return the request for some fields; `hand_over` registers plugins given as objects. Raises `UsageError`."""
        try:
            return cls.model_validate(dict(fields), context=hand_over)
        except ValidationError as error:
            raise FieldError(complaints(cls, error)) from None
        except RecursionError:
            raise FieldError(f"a field of the request is nested deeper than {DEEPEST} levels") from None

    def updated(self, fields: Mapping[str, object], hand_over: HandOver | None = None) -> Self:
        """Return the request with some fields replaced. Raises `UsageError`."""
        if not fields:
            return self
        kept = {name: getattr(self, name) for name in self.model_fields_set if name not in fields}
        if "messages" in fields and "text" not in fields:
            kept.pop("text", None)  # it was the last of the messages before
        if "messages" in fields or "text" in fields:
            kept.pop("asked", None)
        return self.of({**kept, **fields}, hand_over)

    @model_validator(mode="before")
    @classmethod
    def _from_outside(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        fields = {str(name): value for name, value in cast("Mapping[object, object]", given).items()
                  if value is not None}  # fmt: skip
        for name in fields:
            if name in Generation.model_fields and name not in cls.model_fields:
                written = reprlib.repr(fields[name])
                raise UsageError(f"{name} is a field of `generation`: write generation={{{name!r}: {written}}}")
        text = fields.get("text", "")
        if not isinstance(text, str):
            what = type(text).__name__
            raise UsageError(f"a request is a text, and this is a {what}: give a conversation as messages=[…]")
        fields["text"] = writable(text)
        try:
            if fields.get("asked"):
                fields["messages"] = read_messages(fields.get("messages"))
            elif "messages" in fields:
                fields |= _conversation(fields["text"], fields["messages"])
            if limits := {name: fields.pop(name) for name in _LIMITS if name in fields}:
                whole = _budget(fields.get("budget", Budget()))
                base = whole.model_dump(exclude_unset=True) if isinstance(whole, Budget) else whole
                fields["budget"] = cast("Callable[..., Budget]", Budget)(**{**base, **limits})
        except FieldError as error:  # their own texts name the message or the limit
            raise UsageError(str(error), error.param) from None
        return fields


def _conversation(text: str, messages: object) -> dict[str, object]:
    """Return the request's text and the conversation before the text.

    The text is the given one, or the last user message, which stays in the conversation if other messages follow it
    (`asked`). Raises `FieldError` for an invalid conversation, and for one without a question.
    """
    if text and isinstance(messages, list | tuple):  # continues a conversation that has ended
        messages = [*cast("Iterable[object]", messages), {"role": "user", "content": text}]
    turns = read_messages(messages)
    last = turns[-1]
    if last.role != "user":
        question = next(turn.text for turn in reversed(turns) if turn.role == "user")
        return {"text": question, "messages": turns, "asked": True}
    if not last.text.strip():
        raise FieldError("the last message has no text: say what is asked", "messages")
    if not last.images:
        return {"text": last.text, "messages": turns[:-1]}
    images = tuple(part for part in last.parts if part.type == "image_url")
    return {"text": last.text, "messages": (*turns[:-1], last.model_copy(update={"content": images}))}
