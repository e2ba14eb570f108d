"""What a step does: `ModelCall` asks a model, `ToolCall` calls a tool, `Join` makes one value of several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .chat import Message, transcript
from .errors import PluginError
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
            return cls(name=module[-1].replace("_", "-"), options=options)
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


class StructuredOutput(Frozen):
    """A form that the generated text must have, enforced by the engine while it samples."""

    kind: Literal["json", "regex", "grammar", "choice"]
    """`json`: an object of a JSON schema. `regex`: a whole match. `grammar`: a context-free grammar in the engine's
    notation (for vLLM: GBNF or Lark). `choice`: one of several texts."""
    spec: JsonValue
    """The schema (an object), the expression or grammar (a string), or the choices (a list of strings)."""
    required: bool = Field(default=True, exclude_if=lambda required: required)
    """`False`: a worker that cannot enforce the form leaves it out, and the reader of the text checks it."""


class Function(Frozen):
    """The description of a tool that is sent to a model which may call tools."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = {}
    """JSON schema of the arguments, an object."""
    strict: bool | None = Field(default=None, exclude_if=lambda strict: strict is None)
    """Whether calls have to fit the schema: passed to servers unchanged. `None`: not sent."""


def _by_token(given: dict[str, float]) -> dict[str, float]:
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ValueError(f'{token!r:.40} is no token id: write {{"1234": -100}}')
        if not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} is {bias:g}, and must be from -100 to 100")
    return given


LogitBias = Annotated[dict[str, float], AfterValidator(_by_token)]


class Sampling(Frozen):
    """How a model call samples its tokens."""

    max_tokens: int = Field(default=512, ge=1)
    """Most tokens to generate; the machine lowers it when a budget allows less."""
    temperature: float | None = Field(default=None, ge=0.0)
    """0 is greedy. `None`: as the model's `generation_config` says (greedy where it says nothing), or as a server does
    by default."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """`None`: the model's own where `temperature` is `None` too, else 1."""
    top_k: int | None = Field(default=None, ge=0)
    """0 means all tokens. `None`: the model's own where `temperature` is `None` too, else 0."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Tokens less likely than this share of the likeliest one are left out."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Above 1 tokens that occurred before become less likely (CTRL, arXiv 1909.05858); 1 changes nothing."""
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, exclude_if=lambda value: not value)
    """Taken off the logit of each token that the output has already; 0 changes nothing."""
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, exclude_if=lambda value: not value)
    """The same, times how often the output has the token."""
    logit_bias: LogitBias = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Added to the logits of tokens, by token id (a number as text, as JSON has it), from -100 to 100."""
    seed: int | None = None
    """Random seed for sampling. An attempt that continues another's tokens gets a seed derived from this one and the
    number of those tokens."""
    arithmetic: float | None = Field(default=None, ge=0.0, lt=1.0, exclude_if=lambda value: value is None)
    """The code of this line of arithmetic sampling (arXiv 2210.15458), from which all its tokens follow: a number in
    [0, 1) in place of random ones. Lines of one prompt whose codes are far apart say different things; one whose code
    is uniform is an ordinary sample. Without effect at temperature 0."""
    stop: tuple[str, ...] = ()
    """Texts that end the generation."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the generation, in addition to the model's own end."""
    keep_stop: bool = False
    """Whether the stop text (or stop token) stays at the end of the output. A continued context wants it kept."""
    logprobs: int = Field(default=0, ge=-1)
    """At how many of the likeliest tokens of each position to look: 0 none; 1 the sampled one alone (the result then
    carries their mean as `logprob`); k >= 2 also summarised as `Result.signals`; -1 the whole vocabulary."""
    token_logprobs: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the result also has each token's log-probability (`Result.drawn`); needs `logprobs` of 1 or more."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20, exclude_if=lambda value: value is None)
    """Return each token's text and log-probability, with this number of likeliest alternatives (`Result.tokens`)."""
    window: int = Field(default=0, ge=0)
    """Tokens in a sliding group of confidence (W of DeepConf, arXiv 2508.15260); 0: no groups."""
    structured: StructuredOutput | None = None
    """The form that the text must have."""
    labels: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), max_length=64, exclude_if=lambda labels: not labels
    )
    """Texts of one token each, with `max_tokens=1`: the likeliest of them is generated, and `Result.labels` says how
    likely the model finds each of them there."""

    @property
    def draws(self) -> bool:
        """Whether random numbers may decide its tokens: not at temperature 0."""
        return self.temperature != 0

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the settings, other than temperature, `top_p` and the form, that change probabilities."""
        changed = {
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty != 1.0,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "labels": self.labels,
        }
        return tuple(name for name, value in changed.items() if value)

    @field_validator("labels")
    @classmethod
    def _labels_fit(cls, labels: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if labels and (info.data.get("max_tokens") != 1 or info.data.get("structured") is not None):
            raise ValueError("are of one token: give max_tokens=1, and no form")
        if len(set(labels)) < len(labels):
            raise ValueError("has a label twice: name each once")
        return labels


_SAMPLING = Sampling.model_construct()
"""What a call samples by that says nothing. Shared: a default with a dictionary in it would be copied for each call."""


Thinking = Literal["auto", "on", "off"]
THOUGHTS = 8192
"""Most tokens of thoughts of a call that sets no `thinking_tokens`."""


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
    stream: bool = False
    """Send text deltas while generating: to the step's reader if it expands, and to the subscribers of the run."""
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
    thinking: Thinking = Field(default="auto", exclude_if=lambda thinking: thinking == "auto")
    """Whether a model that can think before it answers shall; `auto` leaves it to the model."""
    thinking_tokens: int | None = Field(default=None, ge=0, exclude_if=lambda tokens: tokens is None)
    """Most tokens of thoughts, beyond `Sampling.max_tokens`; `None`: 8,192 where the model is known to think."""
    reasoning_effort: str | None = Field(default=None, max_length=40, exclude_if=lambda value: value is None)
    """How much a model that reasons shall think, in the server's words: `low`, `medium`, `high`."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Values for the model's chat template, such as `{"enable_thinking": false}`."""
    extra_body: dict[str, JsonValue] = Field(default_factory=dict, exclude_if=lambda value: not value)
    """Further fields of the request to a server, as they are. Of an engine in this process see
    `Worker.extra_body`."""

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
            stream: bool = False,
            model: str | None = None,
            salt: str = "",
            tools: Sequence[Function] = (),
            tool_choice: str = "required",
            parallel_tool_calls: bool = True,
            messages: Sequence[Message] = (),
            thinking: Thinking = "auto",
            thinking_tokens: int | None = None,
            reasoning_effort: str | None = None,
            chat_template_kwargs: Mapping[str, JsonValue] = ...,
            extra_body: Mapping[str, JsonValue] = ...,
            kind: Literal["think"] = "think",
        ) -> None: ...

    @property
    def most_thoughts(self) -> int:
        """The most tokens that its thoughts may have, if it has any. None is wanted before a label, which is the first
        token of an answer."""
        if self.thinking == "off" or self.sampling.labels:
            return 0
        return THOUGHTS if self.thinking_tokens is None else self.thinking_tokens

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
            raise ValueError("`chat` with `after` goes on a conversation: say what is new, in `prompt` or `messages`")
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
