"""Task `plain`: any text, answered in any text. It has no verifier."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Annotated, Literal, cast

from pydantic import Field, JsonValue, field_validator, model_validator

from ..core.addresses import resolve
from ..core.declarations import CodeAddress
from ..core.errors import PluginError, TaskError
from ..core.form import json_in
from ..core.regex import expression
from ..core.task import Style, Task
from ..core.values import as_text, split_reasoning
from ..core.vocabulary import FreeText
from ._expression import canonical

__all__ = ["Plain"]

_ANSWER = re.compile(r"\banswer\b[ \t]*+(?:is\b[ \t]*+:?|:)[ \t]*+\**+[ \t]*+(?=\S)", re.IGNORECASE)
_FINAL = re.compile(
    r"\banswer\b[ \t]*+(?:(?:is\b[ \t]*+)?:|is\b(?=[ \t]*+\**+[ \t]*+\$*+[-+\N{MINUS SIGN}]?+[ \t]*+"
    r"(?:\d|\\(?:[dt]?frac|sqrt)\b)))",
    re.IGNORECASE,
)
"""An answer stated after a box. It excludes comments on the box, such as `The answer is right`."""
_NUMBER = re.compile(r"([+-]?) ?(?=\.?\d)(\d{1,40}|\d{1,3}(?:,\d{3}){1,12}|)(?:\.(\d{0,40}))?")
_SCIENTIFIC = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})[eE][+-]?\d{1,3}")
# A whole number before a fraction is added to the fraction: `1 1/2`, `1\frac{1}{2}`.
_FRACTION = re.compile(
    r"([+-]?) ?(?:(\d{1,40})(?: (?=\d)| ?(?=\\)))?"
    r"(?:\\?[dt]?frac ?\{ ?([+-]?) ?(\d{1,40}) ?\} ?\{ ?(\d{1,40}) ?\}|(\d{1,40}) ?/ ?(\d{1,40}))"
)
_WRAPPERS = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{((?:[^{}]|\{[^{}]*\})*)\}")
_PERCENT = re.compile(r"(.+?) ?\\?%")
_BRACKETED = re.compile(r"\(([A-Za-z]+)\)")
_OBJECTS = 200
"""Most opening braces that are tried, from the last one."""


# -- where it stands ---------------------------------------------------------------------------------------------------


class Plain(Task):
    """A question as plain text, sent to the model as a user's message."""

    raw: bool = Field(
        default=False,
        description="Send the text to the model unchanged, without a chat template: it is the beginning of what "
        "the model writes.",
    )
    where: Literal["auto", "boxed", "line", "json", "regex", "function", "text"] = Field(
        default="auto",
        description='Where the answer stands. `auto`: in the last `\\boxed{…}`, or after the last "answer:" (or '
        '"answer is") to the end of its line where that stands behind it (with a number, if there is no colon) or '
        "there is no box, else the whole text. `boxed` and `line`: only there; a text without it has no answer and "
        "does not vote. `json`: in `field` of the last JSON object that has it. `regex`: the last match of `pattern`. "
        "`function`: what `function` returns. `text`: the whole text.",
    )
    equal: Literal["normalised", "exact", "number", "expression"] = Field(
        default="normalised",
        description="When two answers are the same. `normalised`: without regard to case, spaces, a final full "
        "stop, `$`, brackets around a word (`(B)`), the order of keys in JSON, and how a number is written "
        "(`1,000.0`, `1000`, `2000/2`; `1 1/2` is 1.5). `exact`: character by character. `number`: as numbers, "
        "rounded to a multiple of `tolerance` or to `digits`. `expression`: as mathematical expressions (`2(x+1)`, "
        "`2x+2`); any other text is normalised.",
    )
    field: FreeText = Field(
        default="answer",
        description="For `json`: the field; `result.value` is one inside another. Empty: the whole JSON value.",
    )
    pattern: FreeText | None = Field(
        default=None,
        description="For `regex`: its group `answer`, else its first group, else the whole match. In the syntax of "
        "RE2, which has no lookaround and no back-references.",
    )
    function: Annotated[str | None, CodeAddress()] = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="A function, `pkg.mod:fn`, for `where=function`: of a text, returning any JSON value or `None` "
        "for no answer. Quick and pure: it is asked inside the machine, and again in a replay.",
    )
    tolerance: float = Field(
        default=0.0,
        ge=0.0,
        allow_inf_nan=False,
        description="For `number`: answers are rounded to a multiple of this. Two answers that are closer than that "
        'can still round to different multiples: "closer than" would not be an equality (a near b and b near c do not '
        "make a near c).",
    )
    digits: int | None = Field(
        default=None, ge=1, le=50, description="For `number`: significant digits, in the place of `tolerance`."
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            expression(value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> Plain:
        if self.where == "regex" and self.pattern is None:
            raise TaskError("task 'plain': answer=\"regex\" needs a `pattern`")
        if self.where == "function":
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
        """Return whether the text is a user's message."""
        return not self.raw

    def extract(self, text: str) -> JsonValue:
        """Return the answer in a text, or `None`. A leading reasoning block is skipped, unless the text has nothing
        else. With `where=auto`, extraction is idempotent."""
        text = split_reasoning(text)[1] or text
        match self.where:
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
        # A sentence with "answer:" may contain the boxed answer.
        shorter = final(answer) or answer
        if shorter == answer:
            break
        answer = shorter
    return answer or None


# -- the place of an answer in a text, and the canonical form of answers ---------------------------------------------


def boxed(text: str) -> str | None:
    r"""Return the content of the last complete, non-empty `\boxed{…}`, with balanced braces."""
    box = _box(text)
    return None if box is None else box[0]


def final(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}`, unless an answer follows the box; else the text after the last
    "answer:"."""
    box = _box(text)
    if box is not None:
        rest = text[box[1] :]
        return (after_the_word(rest) if _FINAL.search(rest) else None) or box[0]
    return after_the_word(text)


def _box(text: str) -> tuple[str, int] | None:
    """Return the content of the last box, and the offset of its end."""
    end = len(text)
    for _ in range(100):
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        depth = 0
        for at in range(start + 6, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                inside = text[start + 7 : at].strip()
                # An empty box is a mistake: use the box before it.
                if inside:
                    return inside, at + 1
                break
        end = start
    return None


def after_the_word(text: str) -> str | None:
    """Return the text after the last "answer:" (or "answer is") to the end of its line."""
    starts = [word.end() for word in _ANSWER.finditer(text)]
    if not starts:
        return None
    line = text[starts[-1] :].split("\n", 1)[0].strip()
    return line.removesuffix("**").strip() or None


def json_field(text: str, field: str) -> JsonValue:
    """Return a field (`answer`, or `result.value` for a nested one) of the last outermost JSON object with this
    field."""
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    best: JsonValue = None
    covered = len(text)
    end = len(text)
    for _ in range(_OBJECTS):
        start = text.rfind("{", 0, end)
        if start < 0:
            break
        end = start
        try:
            value, stop = cast("tuple[JsonValue, int]", decoder.raw_decode(text, start))
        except (ValueError, RecursionError):
            continue
        inner = _at(value, field.split("."))
        # The search goes backwards, so it finds an enclosing object later, and this object replaces the kept one.
        if inner is not None and (best is None or stop >= covered):
            best, covered = inner, stop
    return best


def _no_constant(text: str) -> JsonValue:
    raise ValueError(f"{text} is not JSON")


def _at(value: JsonValue, path: list[str]) -> JsonValue:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def by_pattern(text: str, pattern: str) -> str | None:
    """Return the last match of a regular expression: its group `answer`, else its first group, else all of it."""
    last = None
    for match in expression(pattern).finditer(text):
        last = match
    if last is None:
        return None
    end = last.named["answer"] if "answer" in last.named else last.groups[0] if last.groups else last.text
    return (end or "").strip() or None


def function(path: str) -> Callable[[str], JsonValue]:
    """Return a function by `pkg.mod:fn`. Raises `TaskError`."""
    try:
        return cast("Callable[[str], JsonValue]", resolve(path, "function"))
    except PluginError as error:
        raise TaskError(str(error)) from error.__cause__


# -- when two are the same ---------------------------------------------------------------------------------------------


def normalised(answer: JsonValue) -> str:
    """Normalise an answer: ignore case, white space, a final full stop, `$`, brackets around a word, the notation of
    numbers and percentages, and the order of keys in JSON."""
    text = plain(answer)
    if (value := number(text)) is not None:
        return str(value)
    if (share := _PERCENT.fullmatch(text)) and (value := number(share[1])) is not None:
        return f"{value}%"
    if text[:1] + text[-1:] in ("{}", "[]"):
        text = _rewritten(text)
    elif word := _BRACKETED.fullmatch(text):
        text = word[1]
    return text.casefold()


def _rewritten(text: str) -> str:
    """Return JSON in one form; any other text as it is."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def plain(answer: JsonValue) -> str:
    """Return an answer as text, without insignificant spaces and marks."""
    if isinstance(answer, dict | list):
        answer = json.dumps(answer, sort_keys=True, ensure_ascii=False)
    text = as_text(answer).replace("\\!", "").replace("\\,", "").replace("$", "").replace("\N{MINUS SIGN}", "-")
    text = " ".join(text.split())
    return _WRAPPERS.sub(r"\1", text).strip().strip("*").rstrip(".").strip()


def number(text: str) -> Fraction | None:
    """Return the exact value of a plain number, fraction or mixed number, `None` for anything else.

    >>> number("1 1/2") == number("1.5") == Fraction(3, 2)
    True
    """
    if matched := _NUMBER.fullmatch(text):
        sign, whole, part = matched[1], matched[2].replace(",", ""), matched[3] or ""
        return Fraction(int(sign + whole + part), 10 ** len(part))
    if matched := _FRACTION.fullmatch(text):
        sign, whole, inner, above, below = (
            matched[1],
            matched[2],
            matched[3],
            matched[4] or matched[6],
            matched[5] or matched[7],
        )
        # Two signs (`-\\frac{-1}{2}`), or a sign inside a mixed number, are invalid.
        if (inner and (sign or whole)) or int(below) == 0:
            return None
        value = int(whole or 0) + Fraction(int(above), int(below))
        return -value if "-" in (sign, inner) else value
    return None


def rounded(answer: JsonValue, tolerance: float, digits: int | None) -> str:
    """Return a number rounded to the nearest multiple of `tolerance`, or to `digits` significant digits, half to even;
    any other text as `normalised` returns it."""
    text = plain(answer).replace("\\%", "%").removesuffix("%").strip()
    value = number(text)
    # `1e3` counts as a number only if numbers are expected: otherwise it may be a name.
    if value is None and _SCIENTIFIC.fullmatch(text):
        value = Fraction(text)
    if value is None:
        return normalised(answer)
    if digits is not None:
        with localcontext() as context:
            context.prec = digits
            return str(Fraction(Decimal(value.numerator) / Decimal(value.denominator)))
    if tolerance > 0.0:
        step = Fraction(repr(tolerance))
        return str(round(value / step) * step)
    return str(value)
