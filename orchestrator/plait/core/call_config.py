"""`CallConfig`: the user's configuration of one kind of model call of a planner.

A planner declares the kinds of calls that it makes as fields, with its own defaults:

    class LLMCompiler(Planner):
        plan: Annotated[Prompt, Uses("question", "tools")] = CallConfig(max_tokens=1024)
        joiner: Annotated[Prompt, Uses("question", "observations")] = CallConfig(max_tokens=512)

An option's fields override the planner's default: `LLMCompiler(plan=CallConfig(max_tokens=4000))`, or
`llmcompiler:plan.max_tokens=4000` where plugins are written as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, cast

from pydantic import Field, model_validator

from .declarations import PluginModel
from .ops import Part, Text
from .sampling import Generation, StructuredOutput

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")


class CallConfig(Generation):
    """One kind of model call of a planner: its prompt template and its generation parameters."""

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
    stream: bool | None = Field(
        default=None, description="Send the text while it is being written. By default if somebody reads it."
    )
    window: int | None = Field(
        default=None,
        ge=0,
        description="Tokens in a sliding group of confidence (`Sampling.window`): for merges and prunings by "
        "confidence.",
    )

    def parts(self, default: str, /, **fields: str | Sequence[Part]) -> tuple[Part, ...]:
        """Return the user's template, or the planner's `default`, with each field substituted once.

        A field is a text, or pieces such as references to other steps.

        >>> CallConfig(template="Q: {question}").parts("{question}", question="2 + 2?")
        (Text(kind='text', text='Q: 2 + 2?'),)
        """
        template = default if self.template is None else self.template
        out: list[Part] = []
        text, end = "", 0
        for place in _FIELD.finditer(template):
            if place[1] not in fields:  # braces of the user's own, such as those of JSON
                continue
            value = fields[place[1]]
            text += template[end : place.start()]
            for piece in (value,) if isinstance(value, str) else value:
                if isinstance(piece, str | Text):
                    text += piece if isinstance(piece, str) else piece.text
                else:
                    out += (Text(text=text), piece) if text else (piece,)
                    text = ""
            end = place.end()
        text += template[end:]
        return (*out, Text(text=text)) if text else tuple(out)

    def text(self, default: str, /, **fields: str) -> str:
        """Return the same as one text."""
        return "".join(part.text for part in self.parts(default, **fields) if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Uses:
    """The fields that a `CallConfig`'s template may use: `Annotated[CallConfig, Uses("question", "tools")]`."""

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
    """Base of plugins with `CallConfig` options for their model calls."""

    @model_validator(mode="before")
    @classmethod
    def _prompts_over_defaults(cls, values: object) -> object:
        # A user's option changes only its own field: `plan.max_tokens=4000` keeps the plugin's temperature.
        if not isinstance(values, Mapping):
            return values
        given = cast("Mapping[str, object]", values)
        return lay_over(given, {name: info.default for name, info in cls.model_fields.items() if name in given})

    @model_validator(mode="after")
    def _templates_name_known_fields(self) -> Self:
        for name, info in type(self).model_fields.items():
            for uses in info.metadata:
                if isinstance(uses, Uses):
                    uses.check(name, getattr(self, name))
        return self


def lay_over(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """Return a planner's options with each `CallConfig` among them laid over the planner's default of that name."""
    out = dict(values)
    for name, default in defaults.items():
        given = out.get(name)
        if isinstance(default, CallConfig) and isinstance(given, CallConfig | Mapping):
            # not validated here: a wrong value is then named by its path, such as `plan.max_tokens`
            out[name] = {**_set_fields(default), **(_set_fields(given) if isinstance(given, CallConfig) else given)}
    return out


def _set_fields(prompt: CallConfig) -> dict[str, object]:
    return {name: getattr(prompt, name) for name in prompt.model_fields_set}
