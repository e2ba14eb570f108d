"""What a caller asks, once: every door (SDK, command line, REPL, batch, MCP, server, settings) makes a `Request`.

What it leaves out is the settings'. The one that is journalled (`Submitted`) is complete: `n` and `merge`, and what
`generation` says of the answer, stand among its planner's options. What lives (functions, a verifier) stands beside it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
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
from .values import DEEPEST, Frozen, complaints, writable

HandOver = Callable[[str, object], Plugin]
"""Makes a plugin that a program hands over as it is (an instance, a class, a function) known, and returns its name and
options. Takes the plugin's kind first."""
_KINDS = {"policies": "policy"}
DERIVED_SESSION = "~"
"""First character of a session that a server derived from the beginning of a conversation."""
_LIMITS = ("tokens", "seconds")
"""Limits of the budget that may be given by themselves."""


def as_tuple(name: str, given: object, example: str) -> tuple[object, ...]:
    """Return an argument that holds several things. Raises `UsageError` with an example."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        written = reprlib.repr(cast("object", given))
        raise UsageError(f"{name}={written} is no list: write {example}")
    return tuple(cast("Iterable[object]", given))


def _plugin(given: object, info: ValidationInfo) -> object:
    """Take a plugin by name with its options in a text, as a `Plugin`, or as it is."""
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
    """Take a function, also of OpenAI's form `{"type": "function", "function": {…}}`."""
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
    """How many more times a step of each kind may be tried after a failure that says it is retryable."""

    think: int = Field(default=2, ge=0)
    call: int = Field(default=1, ge=0)
    lost: int = Field(default=3, ge=0)
    """After a worker was lost; counted apart, for it says nothing about the step."""
    deaths: int = Field(default=2, ge=2)
    """Workers that may go away, one after another, while they run a step, before it is given up: it may be what ends
    them. A worker counts again when another was lost in between; and not if it ran another such step too."""
    backoff: float = Field(default=0.2, ge=0)
    """Seconds before the first retry; doubled each time. A step whose worker was lost does not wait."""


class Request(Frozen):
    """What a caller asks of the orchestrator. What it leaves out, or gives as `None`, is the settings'.

    A plugin is given by its name, in a text with its options, as a `Plugin`, or as an instance or a class of one.
    `tokens` and `seconds` may be given by themselves: they are limits of `budget`.

    >>> request = Request(text="2 + 2?", planner="sample:n=8", tokens=500)
    >>> request.planner, request.budget
    (Plugin(name='sample', options={'n': 8}), Budget(tokens=500))
    """

    text: str = ""
    """What is asked."""
    messages: tuple[Message, ...] = Field(default=(), exclude_if=lambda messages: not messages)
    """The conversation before `text`, which is its last user's message: a text beside messages is one more message of
    the user's, and of messages alone the last one becomes the text. It stands before the prompts of all steps that
    are chats and have no messages of their own."""
    asked: bool = Field(default=False, exclude_if=lambda asked: not asked)
    """Whether `text` stands among `messages`: they end with another's words than the user's, such as results of tools,
    and `text` is the user's last. A step that asks just that gets the conversation alone. It is set where messages are
    read."""
    task: _Plugin = Plugin.model_construct({"name"}, name="plain")
    """Meaning of the text: the prompt for the model, the place of the answer, the check whether it is right."""
    planner: _Plugin = Plugin.model_construct({"name"}, name="single")
    """How the work is split."""
    policies: Annotated[tuple[_Plugin, ...], BeforeValidator(_policies)] = ()
    """Order, placement, pruning: ranks are compared one after another, the first to name a place counts, all prune."""
    merge: _Plugin | None = Field(default=None, exclude_if=lambda merge: merge is None)
    """How branches become one answer, for planners that have this option."""
    n: int | None = Field(default=None, ge=1, exclude_if=lambda n: n is None)
    """How many branches, for planners that have such an option."""
    generation: Generation = Field(
        default=_GENERATION, exclude_if=lambda generation: generation is _GENERATION or generation == _GENERATION
    )
    """How text is generated: `max_tokens`, `temperature`, `top_p` of the answer, the rest of all model calls that do
    not say it themselves."""
    tools: Annotated[
        tuple[Annotated[Function, BeforeValidator(_function)], ...],
        BeforeValidator(lambda given: as_tuple("tools", given, 'tools=[{"name": "f", "parameters": {…}}]')),
    ] = Field(default=(), exclude_if=lambda tools: not tools)
    """Functions that the model may call and the caller runs: its calls are in the answer's message."""
    tool_choice: str = Field(default="auto", max_length=64, exclude_if=lambda choice: choice == "auto")
    """Of these: `auto`, `none`, `required`, or the name of the one that has to be called."""
    parallel_tool_calls: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether one turn may make several calls."""
    begin: str = Field(default="", max_length=1_000_000, exclude_if=lambda begin: not begin)
    """Text that the model's turn begins with in the calls whose text is the answer (`ModelCall.begin`)."""
    form: StructuredOutput | None = Field(default=None, exclude_if=lambda form: form is None)
    """What the text of those calls is held to while it is written: an expression, a grammar, one of some texts. For
    JSON there is `output`."""
    output: Annotated[Form | None, BeforeValidator(_form)] = Field(default=None, exclude_if=lambda form: form is None)
    """The form of the answer, where it is to be typed: a pydantic model, a dataclass, a TypedDict, `list[…]`, or a JSON
    schema."""
    budget: Annotated[Budget, BeforeValidator(_budget)] = Budget.model_construct()
    """Hard limits, also as a text: `total_tokens=5000,cost=0.5`."""
    default_token_limit: int | None = Field(default=None, ge=1, exclude_if=lambda bound: bound is None)
    """Limit of generated tokens per run if `budget` limits neither tokens nor cost. It does not guide spending:
    planners do not see it. `None`: no limit."""
    value_bytes: int | None = Field(default=None, ge=1, exclude_if=lambda limit: limit is None)
    """Most bytes of values that the run may put together: those that its joins read, and that are put into prompts and
    arguments of its steps. By default 64 MiB (`plait.core.value_sizes`)."""
    retries: Retries = Retries.model_construct()
    fairness_group: str = Field(default="", max_length=200, exclude_if=lambda share: not share)
    """Runs that name the same share divide slots with others as one run would, and go in order of arrival among
    themselves. Each run is a share of its own by default."""
    fairness_weight: float = Field(default=1.0, ge=0.001, le=1000, exclude_if=lambda weight: weight == 1)
    """Of its share: one of weight 2 gets twice the tokens of one of weight 1 while both have steps that wait."""
    priority: int = Field(default=0, ge=-1000, le=1000, exclude_if=lambda priority: not priority)
    """Added to that of each step: all that waits with a smaller one goes first, whatever has been served."""
    seed: int = 0
    """Of all sampling."""
    model: str | None = Field(default=None, exclude_if=lambda model: model is None)
    """Name of the model that answers where a step names none (`ModelCall.model`)."""
    salt: str = Field(default="", exclude_if=lambda salt: not salt)
    """Of the cached prefixes of all steps that have none of their own (`ModelCall.salt`): what keeps tenants apart."""
    tenant: str = Field(default="", max_length=200, exclude_if=lambda tenant: not tenant)
    """Who asks, where a server has several tenants."""
    rights: Rights = Field(default=_RIGHTS, exclude_if=lambda rights: rights is _RIGHTS or rights == _RIGHTS)
    """What its steps may ask for, with any planner. A server sets them."""
    session: str = Field(default="", max_length=200, exclude_if=lambda session: not session)
    """Which conversation or job of the caller's it belongs to; kept with the run, and sent to the serving stack as the
    session of its first trajectory."""
    approve: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(
        default=(), exclude_if=lambda approve: not approve
    )
    """Tools whose calls a person has to allow first, in addition to those that declare it: by name; `side-effects`: all
    that change the world; `all`."""
    metadata: dict[str, str] = Field(default={}, exclude_if=lambda metadata: not metadata)
    """The caller's own notes; kept with the run."""

    @property
    def bounded(self) -> Budget:
        """The limits that hold: those of `budget`, with `default_token_limit` where they say nothing of tokens and
        cost.

        >>> Request(default_token_limit=9, seconds=5.0).bounded, Request(default_token_limit=9, tokens=5).bounded
        (Budget(tokens=9, seconds=5.0), Budget(tokens=5))
        """
        budget = self.budget
        if self.default_token_limit is None or (budget.tokens, budget.total_tokens, budget.cost) != (None, None, None):
            return budget
        return budget.model_copy(update={"tokens": self.default_token_limit})

    @classmethod
    def of(cls, fields: Mapping[str, object], hand_over: HandOver | None = None) -> Self:
        """Return the request of some fields; `hand_over` takes plugins that are no names. Raises `UsageError`."""
        try:
            return cls.model_validate(_under_new_names(cls, fields, cls.__name__), context=hand_over)
        except ValidationError as error:
            raise FieldError(complaints(cls, error)) from None
        except RecursionError:
            raise FieldError(f"a field of the request is nested deeper than {DEEPEST} levels") from None

    def updated(self, fields: Mapping[str, object], hand_over: HandOver | None = None) -> Self:
        """Return the request with other fields than these. Raises `UsageError`."""
        if not fields:
            return self
        fields = _under_new_names(type(self), fields, type(self).__name__)
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
        fields = _under_new_names(cls, fields)  # a journal's may be old
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
        except FieldError as error:  # words of their own, which name the message or the limit
            raise UsageError(str(error), error.param) from None
        return fields


def _under_new_names(cls: type[Request], fields: Mapping[str, object], subject: str = "") -> dict[str, object]:
    if fields.keys() <= cls.model_fields.keys():
        return dict(fields)
    from .renamed import current  # for fields under old names only

    return current(fields, cls.model_fields, subject)


def _conversation(text: str, messages: object) -> dict[str, object]:
    """Return the text that is asked and the conversation before it.

    The text is the one given, or the user's last message; where others have spoken after it, it stays in its place
    (`asked`). Raises `FieldError` for what is no conversation, and for one that asks nothing.
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
