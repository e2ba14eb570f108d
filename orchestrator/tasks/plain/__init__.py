"""Task `plain`: any text, answered in any text. It has no verifier."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from ...core.chat import split_reasoning
from ...core.errors import TaskError
from ...core.form import json_in
from ...core.regex import expression
from ...core.task import Style, Task
from ...core.values import as_text
from .._expression import canonical
from .answers import after_the_word, boxed, by_pattern, final, function, json_field, normalised, plain, rounded

__all__ = ["Plain"]


class Plain(Task):
    """A question in words, put to the model as a user's message."""

    answer: Literal["auto", "boxed", "line", "json", "regex", "function", "text"] = "auto"
    r"""Where the answer stands. `auto`: in the last `\boxed{…}`, or after the last "answer:" (or "answer is") to the
    end of its line where that stands behind it (with a number, if there is no colon) or there is no box, else the whole
    text. `boxed` and `line`: only there; a text without it has no answer and does not
    vote. `json`: in `field` of the last JSON object that has it. `regex`: the last match of `pattern`. `function`: what
    `function` returns. `text`: the whole text."""
    equal: Literal["normalised", "exact", "number", "expression"] = "normalised"
    """When two answers are the same. `normalised`: without regard to case, spaces, a final full stop, `$`, brackets
    around a word (`(B)`), the order of keys in JSON, and how a number is written (`1,000.0`, `1000`, `2000/2`; `1 1/2`
    is 1.5). `exact`: character by character. `number`: as
    numbers, rounded to a multiple of `tolerance` or to `digits`. `expression`: as mathematical expressions (`2(x+1)`,
    `2x+2`); any other text is normalised."""
    field: str = "answer"
    """For `json`: the field; `result.value` is one inside another. Empty: the whole JSON value."""
    pattern: str | None = None
    """For `regex`: its group `answer`, else its first group, else the whole match. In the syntax of RE2, which
    has no lookaround and no back-references."""
    function: str | None = Field(default=None, pattern=r"^[\w.]+:\w+$")
    """For `function`: `pkg.mod:fn` of a text, returning any JSON value or `None` for no answer. Quick and pure: it is
    asked inside the machine, and again in a replay."""
    tolerance: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """For `number`: answers are rounded to a multiple of this. Two answers that are closer than that can still round to
    different multiples: "closer than" would not be an equality (a near b and b near c do not make a near c)."""
    digits: int | None = Field(default=None, ge=1, le=50)
    """For `number`: significant digits, in the place of `tolerance`."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            expression(value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> Plain:
        if self.answer == "regex" and self.pattern is None:
            raise TaskError("task 'plain': answer=\"regex\" needs a `pattern`")
        if self.answer == "function":
            if self.function is None:
                raise TaskError("task 'plain': answer=\"function\" needs a `function`, as pkg.mod:fn")
            function(self.function)
        return self

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the text as it is; there are no styles."""
        if not self.text.strip():
            raise TaskError('there is nothing to answer: give a text, for example "What is 6 times 7?"')
        return self.text

    def chat(self) -> bool:
        """Return `True`: the text is a user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the answer in a text, or `None`; a block of reasoning before it does not count, unless there is
        nothing else. With `answer=auto` extracting again changes nothing."""
        text = split_reasoning(text)[1] or text
        match self.answer:
            case "auto":
                return _auto(text)
            case "boxed":
                return boxed(text)
            case "line":
                return after_the_word(text)
            case "json":
                return json_field(text, self.field) if self.field else json_in(text)
            case "regex":
                return by_pattern(text, self.pattern or "")
            case "function":
                return function(self.function or "")(text)
            case "text":
                return text.strip() or None

    def key(self, answer: JsonValue) -> str:
        """Return the answer in the form that `equal` asks for."""
        match self.equal:
            case "exact":
                return as_text(answer)
            case "number":
                return rounded(answer, self.tolerance, self.digits)
            case "expression":
                return canonical(plain(answer)) or normalised(answer)
            case "normalised":
                return normalised(answer)


def _auto(text: str) -> str | None:
    answer = text.strip()
    for _ in range(100):
        shorter = final(answer) or answer
        if shorter == answer:
            break
        answer = shorter
    return answer or None
