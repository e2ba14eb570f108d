"""How a model is asked: `Generation`, what may be said of any model call, and `CallConfig`, one kind of call of a
planner.

A planner declares the kinds of calls that it makes as fields, with its own defaults:

    class LLMCompiler(Planner):
        plan: Annotated[Prompt, Uses("question", "tools")] = CallConfig(max_tokens=1024)
        joiner: Annotated[Prompt, Uses("question", "observations")] = CallConfig(max_tokens=512)

What an option says of a call is laid over the planner's default: `LLMCompiler(plan=CallConfig(max_tokens=4000))`, or
`llmcompiler:plan.max_tokens=4000` where plugins are written as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from .declarations import PluginModel
from .ops import LogitBias, Part, StructuredOutput, Text, Thinking
from .values import Frozen, json_value

__all__ = ["CallConfig", "Generation", "Uses", "WithCallConfigs"]

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_Json = Annotated[dict[str, JsonValue], BeforeValidator(json_value)]


class Generation(Frozen):
    """How text is generated. A field that is `None` or empty falls back to the next source: the planner's default, the
    request (for the call that writes the answer), the model's own `generation_config`, the worker."""

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
    temperature: float | None = Field(default=None, ge=0.0, description="0 is greedy.")
    top_p: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Sample from the most likely tokens that together have this probability.",
    )
    top_k: int | None = Field(default=None, ge=0, description="Sample from the N most likely tokens only; 0: all.")
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
    logprobs: int | None = Field(
        default=None,
        ge=-1,
        description="At how many of the likeliest tokens of each position to look (`Sampling.logprobs`).",
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

    def __deepcopy__(self, memo: dict[int, object] | None = None) -> Self:
        return self  # frozen: planners share their defaults, which pydantic would copy for each planner that is made

    def over(self, other: Generation) -> Self:
        """Return this, with what it leaves open as `other` says it."""
        fields = type(self).model_fields
        open_ = {
            name: getattr(other, name)
            for name in other.model_fields_set & fields.keys()
            if getattr(self, name) == fields[name].default
        }
        return self.model_copy(update=open_) if open_ else self


class CallConfig(Generation):
    """One kind of model call that a planner makes: what it is asked, and how its text is generated."""

    template: str | None = Field(
        default=None,
        max_length=200_000,
        description="Text with named fields in braces (`{question}`) in place of the planner's own; the planner's "
        "docstring says which fields there are. Other braces stay as they are.",
    )
    model: str | None = Field(default=None, description="Name of the model that answers; `None`: the request's.")
    form: StructuredOutput | Literal["calls", "choice", "json"] | None = Field(
        default=None,
        description="The form that the text must have; `None`: free. A word names a form that the planner "
        "makes for some of its model calls: `calls` of the offered tools, a `choice` of texts, "
        "`json`.",
    )
    begin: str | None = Field(
        default=None,
        description="Text that the model's turn begins with. `no-thinking`: an ended block of thoughts, for a model "
        "that thinks before it answers (NoThinking, arXiv 2504.09858).",
    )
    stream: bool = Field(default=False, description="Send the text while it is being written.")
    window: int | None = Field(
        default=None,
        ge=0,
        description="Tokens in a sliding group of confidence (`Sampling.window`): for merges and prunings by "
        "confidence.",
    )

    def parts(self, default: str, /, **fields: str | Sequence[Part]) -> tuple[Part, ...]:
        """Return the template, or the planner's `default` where the user gave none, with its fields put in, once each.

        A field is a text, or pieces such as references to other steps.

        >>> CallConfig(template="Q: {question}").parts("{question}", question="2 + 2?")
        (Text(kind='text', text='Q: 2 + 2?'),)
        """
        template = default if self.template is None else self.template
        out: list[Part] = []
        end = 0
        for place in _FIELD.finditer(template):
            if place[1] not in fields:  # braces of the user's own, such as those of JSON
                continue
            value = fields[place[1]]
            out.append(Text(text=template[end : place.start()]))
            out += [Text(text=value)] if isinstance(value, str) else value
            end = place.end()
        return joined([*out, Text(text=template[end:])])

    def text(self, default: str, /, **fields: str) -> str:
        """Return the same as one text."""
        return "".join(part.text for part in self.parts(default, **fields) if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Uses:
    """Which fields the template of a planner's `CallConfig` may name: `Annotated[CallConfig, Uses("question",
    "tools")]`."""

    fields: tuple[str, ...]

    def __init__(self, *fields: str) -> None:
        object.__setattr__(self, "fields", fields)

    def check(self, name: str, prompt: CallConfig) -> None:
        """Raise `ValueError` for a template that names an unknown field."""
        for place in _FIELD.finditer(prompt.template or ""):
            if place[1] not in self.fields:
                there = ", ".join(self.fields) or "none"
                raise ValueError(
                    f"{name}.template names {{{place[1]}}}, and there is no such field (there are: {there})"
                )


class WithCallConfigs(PluginModel):
    """Base of plugins whose options are prompts of the calls that they make."""

    @model_validator(mode="before")
    @classmethod
    def _prompts_over_defaults(cls, values: object) -> object:
        # What a user says of a call changes that alone: `plan.max_tokens=4000` keeps the plugin's temperature.
        if not isinstance(values, Mapping):
            return values
        given = cast("Mapping[str, object]", values)
        return laid_over(given, {name: info.default for name, info in cls.model_fields.items() if name in given})

    @model_validator(mode="after")
    def _templates_name_known_fields(self) -> Self:
        for name, info in type(self).model_fields.items():
            for uses in info.metadata:
                if isinstance(uses, Uses):
                    uses.check(name, getattr(self, name))
        return self


def laid_over(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """Return a planner's options with each `CallConfig` among them laid over the planner's default of that name."""
    out = dict(values)
    for name, default in defaults.items():
        given = out.get(name)
        if isinstance(default, CallConfig) and isinstance(given, CallConfig | Mapping):
            # not validated here: a wrong value is then named by its path, such as `plan.max_tokens`
            out[name] = {**_said(default), **(_said(given) if isinstance(given, CallConfig) else given)}
    return out


def _said(prompt: CallConfig) -> dict[str, object]:
    return {name: getattr(prompt, name) for name in prompt.model_fields_set}


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return pieces without empty texts, neighbouring texts as one."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and out and isinstance(out[-1], Text):
            out[-1] = Text(text=out[-1].text + part.text)
        elif not (isinstance(part, Text) and not part.text):
            out.append(part)
    return tuple(out)
