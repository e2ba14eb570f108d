"""Sampling parameters: `Generation` (what each source may set), `Sampling` (the values of one call), and `resolve`,
which combines the sources by precedence."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from .values import Frozen, json_value

Thinking = Literal["auto", "on", "off"]
THOUGHTS = 8192
"""Default limit of reasoning tokens per call."""
ANSWER_FIELDS = ("max_tokens", "thinking", "thinking_tokens", "temperature", "top_p")
"""Fields of `Request.generation` for the calls that write the answer; the others apply to all model calls."""


class StructuredOutput(Frozen):
    """A format of the generated text that the engine enforces while it samples."""

    kind: Literal["json", "regex", "grammar", "choice"]
    """`json`: an object of a JSON schema. `regex`: a whole match. `grammar`: a context-free grammar in the engine's
    notation (for vLLM: GBNF or Lark). `choice`: one of several texts."""
    spec: JsonValue
    """The schema (an object), the expression or grammar (a string), or the choices (a list of strings)."""
    required: bool = Field(default=True, exclude_if=lambda required: required)
    """`False`: a worker that cannot enforce the format ignores it, and the reader of the text checks the text."""


def _by_token(given: dict[str, float]) -> dict[str, float]:
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise ValueError(f'{token!r:.40} is no token id: write {{"1234": -100}}')
        if not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {token} is {bias:g}, and must be from -100 to 100")
    return given


LogitBias = Annotated[dict[str, float], AfterValidator(_by_token)]


_Json = Annotated[dict[str, JsonValue], BeforeValidator(json_value)]


class Generation(Frozen):
    """Generation parameters of one source. A field's default means *unset*: `resolve` then asks the next source."""

    max_tokens: int | None = Field(default=None, ge=1, description="Most tokens to generate, thoughts apart.")
    thinking: Thinking = Field(
        default="auto",
        description="Whether a model that can think before it answers shall: `auto` leaves it to the planner and "
        "the model.",
    )
    thinking_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Most tokens of thoughts, beyond `max_tokens`; `None`: 8,192 where the model is known to think.",
    )
    temperature: float | None = Field(
        default=None,
        ge=0.0,
        description="0 is greedy. `None`: as the model's `generation_config` has it (greedy if it has none), or the "
        "server's default.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Sample from the most likely tokens that together have this probability. `None`: the model's own "
        "if `temperature` is `None` too, else 1.",
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        description="Sample from the N most likely tokens only; 0: all. `None`: the model's own if `temperature` is "
        "`None` too, else 0.",
    )
    min_p: float | None = Field(
        default=None, ge=0.0, le=1.0, description="Leave out tokens less likely than this share of the likeliest one."
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0.0,
        description="Above 1 tokens that occurred before become less likely (CTRL, arXiv 1909.05858).",
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2.0, le=2.0, description="Taken off the logit of each token that the output has already."
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2.0, le=2.0, description="The same, times how often the output has the token."
    )
    logit_bias: LogitBias = Field(
        default={},
        description="Added to the logits of tokens, by token id (a number as text, as JSON has it), from -100 to 100.",
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Texts that end the generation."
    )
    logprobs: int = Field(
        default=0,
        ge=-1,
        description="At how many of the likeliest tokens of each position to look: 0 none; 1 the sampled one alone "
        "(the result then carries their mean as `logprob`); k >= 2 also summarised as `Result.signals`; -1 the whole "
        "vocabulary.",
    )
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=20,
        description="Return each token's text and log-probability, with this number of likeliest alternatives "
        "(`Answer.tokens`).",
    )
    reasoning_effort: str | None = Field(
        default=None,
        max_length=40,
        description="How much a model that reasons shall think, in the server's words: `low`, `medium`, `high`.",
    )
    chat_template_kwargs: _Json = Field(
        default={}, description='Values for the model\'s chat template, such as `{"enable_thinking": false}`.'
    )
    extra_body: _Json = Field(default={}, description="Further fields of each request to a server, as they are.")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    def over(self, other: Generation) -> Self:
        """Return this, with the fields that it leaves unset from `other`."""
        fields = type(self).model_fields
        update = {name: value for name, value in resolve(self, planner=other).items() if name in fields}
        return self.model_copy(update=update)


class Sampling(Generation):
    """Sampling parameters of one model call: the result of `resolve`, plus fields that only a single call can set."""

    # A call always has a limit, which the machine lowers when a budget allows less.
    max_tokens: int = Field(default=512, ge=1)  # pyright: ignore[reportIncompatibleVariableOverride]
    seed: int | None = None
    """Random seed for sampling. An attempt that continues another attempt's tokens gets a seed derived from this seed
    and the number of these tokens."""
    arithmetic: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Code of arithmetic sampling (arXiv 2210.15458): a number in [0, 1) that determines all tokens, in place of random
    numbers. Distant codes give different texts for one prompt; a uniformly random code gives an ordinary sample.
    Ignored at temperature 0."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the generation, in addition to the model's own end."""
    keep_stop: bool = False
    """Whether the stop text (or stop token) stays at the end of the output. Set it for a continued context."""
    token_logprobs: bool = False
    """Whether the result also has each token's log-probability (`Result.drawn`); needs `logprobs` of 1 or more."""
    window: int = Field(default=0, ge=0)
    """Tokens in a sliding group of confidence (W of DeepConf, arXiv 2508.15260); 0: no groups."""
    structured: StructuredOutput | None = None
    """The form that the text must have."""
    labels: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), max_length=64)
    """Candidate texts of one token each, with `max_tokens=1`: the model generates the likeliest candidate, and
    `Result.labels` has the log-probability of each."""

    @property
    def draws(self) -> bool:
        """Whether the call samples at random; false at temperature 0."""
        return self.temperature != 0

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the settings, other than temperature, `top_p` and the form, that change probabilities."""
        changed = {
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty not in (None, 1.0),
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

    @model_serializer(mode="wrap")
    def _without_unset(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        # A journal has one `Sampling` per step; unset fields would take most of the space.
        kept = {"max_tokens", *set_fields(self)}
        return {name: value for name, value in write(self).items() if name in kept}


Source = Generation | Mapping[str, object]
_NOTHING: Mapping[str, object] = MappingProxyType({})


def resolve(
    call: Source,
    *,
    request: Source = _NOTHING,
    settings: Source = _NOTHING,
    planner: Source = _NOTHING,
    model: Source = _NOTHING,
) -> dict[str, object]:
    """Return the fields that the sources set; each has the value of the first source that sets it, in this order:

    1. `call`: the planner for this one call, and the user's option for this kind of call (`answer.temperature=0.7`). 2.
    `request`: the request's `generation`. Its `stop` texts are added to those of the call, because a reader needs the
    call's markers. `extra_body` and `chat_template_kwargs` are resolved key by key. 3. `settings`: the orchestrator's.
    They override a planner's defaults, since planners set nearly every temperature. 4. `planner`: the planner's default
    for this kind of call. 5. `model`: the model's `generation_config`.

    Resolution in stages gives the same result. The worker chooses the value of a field that no source sets.
    """
    asked, own = set_fields(request), set_fields(call)
    for name in ("extra_body", "chat_template_kwargs"):
        if name in asked and name in own:
            own[name] = {**cast("dict[str, object]", asked[name]), **cast("dict[str, object]", own[name])}
    if "stop" in asked and "stop" in own:
        first, more = cast("tuple[str, ...]", own["stop"]), cast("tuple[str, ...]", asked["stop"])
        own["stop"] = tuple(dict.fromkeys((*first, *more)))
    return {**set_fields(model), **set_fields(planner), **set_fields(settings), **asked, **own}


def set_fields(source: Source) -> dict[str, object]:
    """Return the fields that a source sets: all keys of a mapping, or the set fields of a `Generation`."""
    if not isinstance(source, Generation):
        return dict(source)
    fields = type(source).__pydantic_fields__
    return {name: value for name, value in source.__dict__.items() if value != fields[name].default}


def answer_fields(source: Source) -> dict[str, object]:
    """Return the fields that a source sets for the calls that write the answer."""
    fields = set_fields(source)
    return {name: fields[name] for name in ANSWER_FIELDS if name in fields}
