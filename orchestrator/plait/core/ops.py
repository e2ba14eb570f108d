"""What a step does: `ModelCall` asks a model, `ToolCall` calls a tool, `Join` makes one value of several."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
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
from .values import Frozen, StepName

HANDED_OVER: dict[str, type] = {}
"""Classes of plugins that plans were given as objects, by the names that they go by: found here, in the process that
made them, even where they cannot be imported."""


class Plugin(Frozen):
    """A planner, policy, merge or task by name, with the options its class declares as fields."""

    name: str
    """File name of the plugin (`majority`, `critical-path`) or `pkg.mod:Class` for a third party's."""
    options: dict[str, JsonValue] = {}
    """Values for the fields of the plugin's class."""

    @property
    def plain(self) -> bool:
        """Whether it is a name alone, which can name no Python code."""
        return not self.options and ":" not in self.name

    @classmethod
    def of(cls, plugin: object) -> Plugin:
        """Return the plugin that a text means (`sample:n=8,answer.top_p=0.9`, `pkg.mod:Class:n=8`), or the spec of an
        instance or a class of one: of one that can be imported by the name of its module, of plait's own by its
        file's name.

        In a text a value is JSON if it reads as JSON (`n=8`, `stop=["a","b"]`), else a string up to the next comma.
        Raises `PluginError` for a text that names no plugin, `ValueError` for any other value.

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
    """Return the value at the start of `text` and what comes after the comma behind it."""
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
    """Take only as many of the ids, from the first, as make up this text, with which their own text begins. The worker
    finds the place; where it lies inside a token, that token gives way to the rest of the text."""
    text: str = Field(default="", exclude_if=lambda text: not text)
    """What the ids say, if it is known: for those who read the text of a line (`Result.line`). Workers ignore it."""


class Ref(Frozen):
    """The value of another step, put in where this stands.

    In a prompt it becomes text (JSON when the value is not a string). In the arguments of a call a whole argument that
    is a reference passes the typed value. Inside JSON arguments a reference is written `{"$ref": "step"}`.
    """

    kind: Literal["ref"] = "ref"
    step: StepName


Part = Annotated[Text | Tokens | Ref, Field(discriminator="kind")]


def _as_parts(value: object) -> object:
    """Turn plain strings into pieces of text, alone or among other pieces."""
    if isinstance(value, str):
        return (Text(text=value),)
    if isinstance(value, list | tuple):
        parts: list[object] | tuple[object, ...] = value  # pyright: ignore[reportUnknownVariableType]
        return tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return value


def _plain_refs(value: object) -> object:
    """Turn `Ref` objects inside arguments into their JSON form, so that arguments are plain JSON from here on."""
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
    """The description of a tool that is sent to a model which may call tools."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}
    """JSON schema of the arguments, an object."""
    strict: bool | None = Field(default=None, exclude_if=lambda strict: strict is None)
    """Whether calls have to fit the schema: passed to servers unchanged. `None`: not sent."""


_SAMPLING = Sampling.model_construct()
"""How a call with no sampling of its own samples. Shared: a default with a dictionary in it would be copied for each
call."""
_BESIDE = frozenset({"thinking", "thinking_tokens", "reasoning_effort", "chat_template_kwargs", "extra_body"})


class ModelCall(Frozen):
    """One call of the model."""

    kind: Literal["think"] = "think"
    prompt: Annotated[tuple[Part, ...], BeforeValidator(_as_parts)] = ()
    """Pieces of the prompt; a plain string, alone or among them, is a piece of text."""
    after: StepName | None = None
    """The step whose context (prompt and output) this one continues token for token; `prompt` is appended to it."""
    before: str = ""
    """With `after`: the continued step's output counts only as far as the last occurrence of this text, which is left
    out with all behind it. Where the text does not occur, all of the output counts."""
    chat: bool = False
    """Put the prompt as one user message through the model's chat template. With `after` the message continues
    the conversation that the continued step ended: token for token where the model's template allows, else rendered
    again, which `Result.anew` then reports."""
    messages: tuple[Message, ...] = Field(default=(), exclude_if=lambda messages: not messages)
    """With `chat`: messages before the prompt. A prompt after a user's message belongs to that message; it may be
    empty. With `after`: what is new in the conversation, such as the results of tools."""
    context: tuple[Part, ...] = Field(default=(), exclude_if=lambda context: not context)
    """The conversation so far of a continued one, as the engine read and wrote it. Set by the machine."""
    heard: int = Field(default=0, ge=0, exclude_if=lambda heard: not heard)
    """How many of the messages `context` covers. Set by the machine."""
    begin: str = ""
    """With `chat`: text that the model's turn begins with. It belongs to the prompt: the value follows it. It is
    not sent to a server without this feature, so a prompt that relies on it must ask for it in its text too."""
    sampling: Sampling = Field(default_factory=lambda: _SAMPLING)
    """How its tokens are sampled: what its sources set, resolved."""
    stream: bool | None = Field(default=None, exclude_if=lambda stream: stream is None)
    """Whether its text is sent while it is generated, which costs CPU time for each token. `None`: if somebody reads
    it, which is a policy that `needs_stream` or a follower of the run. `True`: always, for a reader or a merge of the
    plan that reads unfinished text. `False`: to followers of the run alone."""
    model: str | None = None
    """Name of the model (or of a LoRA adapter) that answers; `None`: any that a worker serves."""
    salt: str = ""
    """Requests share cached prefixes only with those of the same salt: what keeps tenants apart."""
    tools: tuple[Function, ...] = ()
    """With `chat`: functions that the model may call by itself, by its chat template or the server's API. Its calls are
    part of the text, each as `<tool_call>{"name": …, "arguments": …}</tool_call>`. A server that takes no functions is
    not sent them, so a prompt that relies on them must also describe in its text what to write."""
    tool_choice: str = Field(default="required", max_length=64, exclude_if=lambda value: value == "required")
    """`auto`: the model may call one of `tools`. `required`: it must. A name: it must call that one. A server gets
    it as a field; an engine in this process enforces it."""
    parallel_tool_calls: bool = Field(default=True, exclude_if=lambda value: value)
    """Whether one turn may make several calls."""
    if TYPE_CHECKING:  # what the validators take is wider than what the fields hold

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
    def most_thoughts(self) -> int:
        """The most tokens that its thoughts may have, if it has any. None is wanted before a label, which is the first
        token of an answer."""
        if self.sampling.thinking == "off" or self.sampling.labels:
            return 0
        return THOUGHTS if self.sampling.thinking_tokens is None else self.sampling.thinking_tokens

    @property
    def parts(self) -> tuple[Part, ...]:
        """The whole prompt as pieces, without `begin` and the step that it continues: as a model without a chat
        template gets it."""
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


class ToolCall(Frozen):
    """One call of a tool.

    Inside `args`, `{"$ref": "step"}` means the value of a step, `{"$text": [piece, …]}` for the pieces joined as
    one string, and `{"$literal": value}` for the value itself, unread. Values are put in once; what they contain is
    never read again as a reference.
    """

    kind: Literal["call"] = "call"
    tool: str
    args: Annotated[dict[str, JsonValue], BeforeValidator(_plain_refs)] = {}
    approve: bool | None = Field(default=None, exclude_if=lambda approve: approve is None)
    """`True`: a person has to allow the call before it is made. Set by what the tool and the request say."""

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
    """`all`: a failed branch fails the join. `quorum`: enough when `quorum` branches are done; the rest is cancelled.
    `best-effort`: waits until every branch has ended and merges those that are done; fails only if none is. `any-end`:
    the same, but merges when none is done too: how the branches ended is what it is about. It may have no branches
    at all: such a join ends at once, and is how a value that no step made enters a plan."""
    quorum: int | None = Field(default=None, ge=1)
    """How many branches must be done, for `on_failure="quorum"`."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds after the step entered the plan; then it closes with what is done, or fails if that is not enough
    (`all` needs every branch, `quorum` its number, `best-effort` one, `any-end` none)."""
    early: bool = False
    """Close as soon as the merge's verdict is certain, and cancel the branches still running."""

    @model_validator(mode="before")
    @classmethod
    def _under_old_names(cls, given: object) -> object:
        """Take the fields of plans and journals that were written before `tolerate` became `on_failure`."""
        if not isinstance(given, dict) or "tolerate" not in given:
            return cast(object, given)
        from .renamed import current  # for old journals only

        return current(cast("dict[str, object]", given), cls.model_fields)

    @model_validator(mode="after")
    def _quorum_given(self) -> Join:
        if (self.on_failure == "quorum") != (self.quorum is not None):
            raise ValueError('`quorum` goes with on_failure="quorum", and must be given there')
        return self


Op = Annotated[ModelCall | ToolCall | Join, Field(discriminator="kind")]
Kind = Literal["think", "call", "join"]
