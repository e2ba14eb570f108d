"""Operations of steps: `ModelCall` calls a model, `ToolCall` calls a tool, `Join` combines values into one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from operator import not_
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    model_validator,
)

from .chat import Message, transcript
from .errors import PluginError
from .sampling import THOUGHTS, Sampling, set_fields
from .values import Frozen, StepName, is_none

HANDED_OVER: dict[str, type] = {}
"""Plugin classes that were passed as objects, by plugin name. The process that created them finds them here even if
they cannot be imported."""


class Plugin(Frozen):
    """A planner, policy, merge or task by name, with options for the fields of its class."""

    name: str
    """File name of the plugin (`majority`, `critical-path`) or `pkg.mod:Class` for a third party's."""
    options: dict[str, JsonValue] = {}
    """Values for the fields of the plugin's class."""

    @property
    def plain(self) -> bool:
        """Whether it is a plain name, which cannot name Python code."""
        return not self.options and ":" not in self.name

    @classmethod
    def of(cls, plugin: object) -> Plugin:
        """Return the plugin for a text (`sample:n=8,answer.top_p=0.9`, `pkg.mod:Class:n=8`), a plugin instance or a
        plugin class. An importable class is named by its module, a plugin of plait by its file.

        In a text, a value is parsed as JSON (`n=8`, `stop=["a","b"]`), else as a string up to the next comma. Raises
        `PluginError` for a text that names no plugin, `ValueError` for any other value.

        >>> Plugin.of("sample:n=8,merge=best-of")
        Plugin(name='sample', options={'n': 8, 'merge': 'best-of'})
        """
        if isinstance(plugin, Plugin):
            return plugin
        if isinstance(plugin, str):
            return _of_text(plugin)
        if isinstance(plugin, type) and issubclass(plugin, BaseModel):
            kind, options = plugin, {}
        elif isinstance(plugin, BaseModel):
            kind, options = type(plugin), plugin.model_dump(mode="json", exclude_unset=True)
        else:
            raise ValueError(f"{plugin!r} is no plugin: give a name, a Plugin, or an instance of a plugin's class")
        module = kind.__module__.split(".")
        if module[:2] in (["plait", "policies"], ["plait", "planners"]) and len(module) == 4:
            shared: dict[str, str] = getattr(importlib.import_module(".".join(module[:3])), "SHARED", {})
            named = {home: name for name, home in shared.items()}  # several share a file
            name = named.get(f"{module[3]}:{kind.__qualname__}", module[3].replace("_", "-"))
            return cls(name=name, options=options)
        name = f"{kind.__module__}:{kind.__qualname__}"
        HANDED_OVER[name] = kind
        return cls(name=name, options=options)


def _of_text(text: str) -> Plugin:
    name, _, rest = (part.strip() for part in text.partition(":"))
    head, colon, tail = rest.partition(":")
    if rest and "=" not in head:  # a class
        name, rest = f"{name}:{head.strip()}", tail
        if colon and not tail.strip():
            rest = ""
    if not name or name.startswith(":") or name.endswith(":"):
        raise PluginError(f"{text!r} names no plugin: write name, name:option=value,… or pkg.mod:Class")
    options: dict[str, JsonValue] = {}
    while rest:
        key, equals, rest = rest.partition("=")
        key = key.strip().replace("-", "_")
        *outer, last = key.split(".")
        if not equals or not all(map(str.isidentifier, (*outer, last))):
            raise PluginError(f"{text!r}: {key!r} is not an option: write them as option=value,option=value")
        inner = options
        for part in outer:  # `plan.max_tokens=4000`: a field of the option `plan`
            deeper = inner.setdefault(part, {})
            if not isinstance(deeper, dict):
                raise PluginError(f"{text!r}: the option {part!r} is given whole and in parts")
            inner = deeper
        if last == "template" and rest.lstrip().startswith("@"):  # a row or a body must not read this machine's files
            raise PluginError(f"{text!r}: {key}=@FILE is read only where a person types it: give the text itself")
        if last in inner:
            raise PluginError(f"{text!r}: the option {key!r} is given twice")
        inner[last], rest = _option(rest)
    return Plugin(name=name, options=options)


def _no_constant(text: str) -> JsonValue:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _option(text: str) -> tuple[JsonValue, str]:
    """Return the value at the start of `text` and the text after the next comma."""
    text = text.lstrip()
    try:
        value, end = cast("tuple[JsonValue, int]", _decoder.raw_decode(text))
        rest = text[end:].lstrip()
        if not rest or rest.startswith(","):
            return value, rest[1:]
    except ValueError:  # not JSON: a plain word
        pass
    word, _, rest = text.partition(",")
    return word.strip(), rest


class Text(Frozen):
    """A piece of prompt as text; the worker tokenises it."""

    kind: Literal["text"] = "text"
    text: str


class Tokens(Frozen):
    """A piece of prompt as token ids, passed to the engine untouched."""

    kind: Literal["tokens"] = "tokens"
    ids: tuple[int, ...]
    within: str | None = None
    """A prefix of the ids' text: use only the leading ids for this prefix. If the prefix ends inside a token, the
    worker replaces this token by the rest of the prefix."""
    text: str = Field(default="", exclude_if=not_)
    """Text of the ids, if known, for readers of `Result.line`. Workers ignore it."""


class Ref(Frozen):
    """A reference to another step's value.

    In a prompt, the value becomes text (JSON unless the value is a string). As a whole argument of a call, a reference
    passes the typed value. Inside JSON arguments, write a reference as `{"$ref": "step"}`.
    """

    kind: Literal["ref"] = "ref"
    step: StepName


Part = Annotated[Text | Tokens | Ref, Field(discriminator="kind")]


def _as_parts(value: object) -> object:
    """Convert plain strings into text pieces, alone or among other pieces."""
    if isinstance(value, str):
        return (Text(text=value),)
    if isinstance(value, list | tuple):
        parts: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return value


def _plain_refs(value: object) -> object:
    """Convert `Ref` objects inside arguments into JSON, so that the arguments are plain JSON."""
    match value:
        case Ref():
            return {"$ref": value.step}
        case dict():
            items: dict[object, object] = value  # pyright: ignore[reportUnknownVariableType]
            return {key: _plain_refs(item) for key, item in items.items()}
        case list() | tuple():
            seq: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
            return [_plain_refs(item) for item in seq]
        case _:
            return value


class Function(Frozen):
    """The description of a tool for a model that may call tools."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}
    """JSON schema of the arguments, an object."""
    strict: bool | None = Field(default=None, exclude_if=is_none)
    """Whether calls must fit the schema; sent to servers unchanged. `None`: not sent."""


_SAMPLING = Sampling.model_construct()
"""Default sampling of a call. All calls share the object, because pydantic would copy a default with a dictionary for
each call."""
_BESIDE = frozenset({"thinking", "thinking_tokens", "reasoning_effort", "chat_template_kwargs", "extra_body"})


class ModelCall(Frozen):
    """One call of the model."""

    kind: Literal["think"] = "think"
    prompt: Annotated[tuple[Part, ...], BeforeValidator(_as_parts)] = ()
    """Pieces of the prompt; a plain string, alone or among them, is a piece of text."""
    after: StepName | None = None
    """The step whose context (prompt and output) this step continues token for token, with `prompt` appended."""
    before: str = ""
    """With `after`: continue the other step's output only up to the last occurrence of this text (exclusive). Without
    an occurrence, continue the whole output."""
    chat: bool = False
    """Put the prompt as one user message through the model's chat template. With `after`, the message continues the
    other step's conversation: token for token if the model's template allows, else rendered again, as `Result.anew`
    reports."""
    messages: tuple[Message, ...] = Field(default=(), exclude_if=not_)
    """With `chat`: messages before the prompt. A prompt after a user's message is appended to this message; the prompt
    may be empty. With `after`: the new messages of the conversation, such as tool results."""
    context: tuple[Part, ...] = Field(default=(), exclude_if=not_)
    """For a continued conversation: all messages so far, as the engine read and wrote them. Set by the machine."""
    heard: int = Field(default=0, ge=0, exclude_if=not_)
    """Number of messages in `context`. Set by the machine."""
    begin: str = ""
    """With `chat`: text at the start of the model's turn. It belongs to the prompt, so the value excludes it. A server
    without this feature does not get the text, so a prompt that relies on it must also ask for it."""
    sampling: Sampling = Field(default_factory=lambda: _SAMPLING)
    """Sampling parameters, resolved from all sources."""
    stream: bool | None = Field(default=None, exclude_if=is_none)
    """Whether the worker streams the text, which costs CPU time per token. `None`: only if a policy with `needs_stream`
    or a follower of the run reads the stream. `True`: always, for a reader or merge that reads unfinished text.
    `False`: only for followers of the run."""
    model: str | None = None
    """Name of the model or LoRA adapter; `None`: any model of a worker."""
    salt: str = ""
    """Cache salt: only requests with the same salt share cached prefixes. Salts isolate tenants."""
    tools: tuple[Function, ...] = ()
    """With `chat`: functions that the model may call through its chat template or the server's API. The text contains
    each call as `<tool_call>{"name": …, "arguments": …}</tool_call>`. A server without function calling does not get
    the functions, so a prompt that relies on them must also describe the format of calls."""
    tool_choice: str = Field(default="required", max_length=64, exclude_if="required".__eq__)
    """`auto`: the model may call one of `tools`. `required`: the model must call one. A name: the model must call this
    function. `none`: the model only reads them, as calls before did, so that its prompt's beginning is cached. A server
    gets the field; an engine in this process enforces it."""
    parallel_tool_calls: bool = Field(default=True, exclude_if=bool)
    """Whether one turn may make several calls."""
    if TYPE_CHECKING:  # the validators accept more types than the fields hold

        def __init__(
            self,
            *,
            prompt: str | Sequence[Part | str] = (),
            after: str | None = None,
            before: str = "",
            chat: bool = False,
            begin: str = "",
            sampling: Sampling = ...,
            stream: bool | None = None,
            model: str | None = None,
            salt: str = "",
            tools: Sequence[Function] = (),
            tool_choice: str = "required",
            parallel_tool_calls: bool = True,
            messages: Sequence[Message] = (),
            kind: Literal["think"] = "think",
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _sampling_beside(cls, given: object) -> object:
        """Take the fields of plans and journals written before these five belonged to `sampling`."""
        if not isinstance(given, dict) or _BESIDE.isdisjoint(cast("dict[str, object]", given)):
            return cast(object, given)
        fields = cast("dict[str, object]", given)
        beside = {name: value for name, value in fields.items() if name in _BESIDE}
        sampling = fields.get("sampling", {})
        own = set_fields(sampling) if isinstance(sampling, Sampling) else cast("Mapping[str, object]", sampling)
        rest = {name: value for name, value in fields.items() if name not in _BESIDE}
        return {**rest, "sampling": {**beside, **own}}

    @property
    def is_self_contained(self) -> bool:
        """Whether the call surely refers to no other step. `False` may be due to messages without a reference."""
        return self.after is None and not self.messages and _TEXTS.issuperset(map(type, self.prompt))

    @property
    def most_thoughts(self) -> int:
        """Limit of reasoning tokens, if the call may reason. A call for a label may not, since the label is the
        answer's first token."""
        if self.sampling.thinking == "off" or self.sampling.labels:
            return 0
        return THOUGHTS if self.sampling.thinking_tokens is None else self.sampling.thinking_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """The whole prompt as pieces for a model without a chat template, without `begin` and the continued step."""
        new = self.messages[self.heard :] if self.heard else self.messages
        opens = self.after is None and not self.context
        if not self.chat or (opens and not new):
            return self.prompt
        spoken = [
            Text(text=piece) if isinstance(piece, str) else Ref(step=piece.step) for piece in transcript(new, opens)
        ]
        out: list[Part] = [*self.context, *spoken]
        joins = bool(new) and new[-1].role == "user"
        if self.prompt:
            out += (Text(text="\n" if joins else "\n\nUser: "), *self.prompt)
        bare = opens and len(new) == 1 and joins
        return (*out, *(() if bare else (Text(text="\n\nAssistant:"),)))

    @model_validator(mode="after")
    def _has_context(self) -> ModelCall:
        if not self.prompt and self.after is None and not self.messages:
            raise ValueError("a think step needs a prompt, messages, a step to continue (`after`), or several of them")
        if self.messages and not self.chat:
            raise ValueError("`messages` go with `chat`: a prompt that is plain text has no roles")
        if self.chat and self.after is not None and not self.prompt and not self.messages:
            raise ValueError("`chat` with `after` continues a conversation: give new text in `prompt` or `messages`")
        if self.begin and not self.chat:
            raise ValueError("`begin` goes with `chat`: put it at the end of a prompt that is plain text")
        if self.tools and not self.chat:
            raise ValueError("`tools` go with `chat`: a prompt that is plain text says itself what may be called")
        if self.before and (self.after is None or self.chat):
            raise ValueError("`before` says how far the context of `after` counts: give `after` too, without `chat`")
        return self


_TEXTS = frozenset({Text, Tokens})


class ToolCall(Frozen):
    """One call of a tool.

    Inside `args`, `{"$ref": "step"}` means the value of a step, `{"$text": [piece, …]}` for the pieces joined as one
    string, and `{"$literal": value}` for the value itself, unread. Substitution takes one pass: references inside
    inserted values are not resolved.
    """

    kind: Literal["call"] = "call"
    tool: str
    args: Annotated[dict[str, JsonValue], BeforeValidator(_plain_refs)] = {}
    approve: bool | None = Field(default=None, exclude_if=is_none)
    """`True`: a person must approve the call first. The tool and the request determine the field."""

    if TYPE_CHECKING:  # as above

        def __init__(
            self,
            *,
            tool: str,
            args: Mapping[str, object] = ...,
            approve: bool | None = None,
            kind: Literal["call"] = "call",
        ) -> None: ...


def _as_spec(value: object) -> object:
    return Plugin.of(value) if isinstance(value, BaseModel) else value


class Join(Frozen):
    """Makes one value of the branches named in the step's `needs`."""

    kind: Literal["join"] = "join"
    merge: Annotated[Plugin, BeforeValidator(_as_spec)] = Plugin.model_construct({"name"}, name="collect")
    """How. A plugin's object is taken as well: `merge=Majority()`."""
    on_failure: Literal["all", "quorum", "best-effort", "any-end"] = "all"
    """`all`: a failed branch fails the join. `quorum`: completes when `quorum` branches are done and cancels the rest.
    `best-effort`: waits until every branch has ended and merges those that are done; fails only if none is. `any-end`:
    the same, but also merges if no branch is done, for merges that read how the branches ended. A join without branches
    ends at once; a plan can thus contain a value that no step made."""
    quorum: int | None = Field(default=None, ge=1)
    """Required number of finished branches, for `on_failure="quorum"`."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after the step entered the plan. Then the join closes with the finished branches, or fails if too few are
    done (`all` needs every branch, `quorum` its number, `best-effort` one, `any-end` none)."""
    early: bool = False
    """Close as soon as the merge's verdict is certain, and cancel the branches still running."""

    @model_validator(mode="after")
    def _quorum_given(self) -> Join:
        if (self.on_failure == "quorum") != (self.quorum is not None):
            raise ValueError('`quorum` goes with on_failure="quorum", and must be given there')
        return self


Op = Annotated[ModelCall | ToolCall | Join, Field(discriminator="kind")]
Kind = Literal["think", "call", "join"]
