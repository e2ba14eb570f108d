"""Task `plain`: any text, answered in any text.

Decides where in a text the answer stands and when two answers are the same. It cannot tell whether one is right.
"""

from __future__ import annotations

import re
from fractions import Fraction

from pydantic import JsonValue

from ..core.base import Style, Task
from ..core.errors import TaskError
from ..core.ir import as_text

__all__ = ["Plain"]

_ANSWER = re.compile(r"\banswer\b[ \t]*(?:is\b[ \t]*:?|:)[ \t]*\**[ \t]*(?=\S)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?)(\d{1,40}|\d{1,3}(?:,\d{3}){1,12})(?:\.(\d{0,40}))?")
_FRACTION = re.compile(r"([+-]?)\\?[dt]?frac\{([+-]?\d{1,40})\}\{(\d{1,40})\}|([+-]?\d{1,40})/(\d{1,40})")
_WRAPPERS = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


class Plain(Task):
    """A question in words, put to the model as a user's message."""

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the text as it is; there are no styles."""
        if not self.text.strip():
            raise TaskError('there is nothing to answer: give a text, for example "What is 6 times 7?"')
        return self.text

    def chat(self) -> bool:
        """Return `True`: the text is a user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        r"""Return what stands in the last `\boxed{…}`, else after the last "answer:" (or "answer is") to the end of its
        line, else the whole text without space around it; `None` for an empty one. Extracting again changes nothing."""
        answer = text.strip()
        for _ in range(100):
            shorter = _extract_once(answer)
            if shorter == answer:
                break
            answer = shorter
        return answer or None

    def key(self, answer: JsonValue) -> str:
        """Return the answer without regard to case, white space, a final full stop, `$`, and how a number is written
        (`1,000.0`, `1000` and `2000/2` are the same)."""
        text = " ".join(as_text(answer).replace("\\!", "").replace("\\,", "").replace("$", "").split())
        text = _WRAPPERS.sub(r"\1", text).strip().strip("*").rstrip(".").strip()
        number = _number(text)
        return str(number) if number is not None else text.casefold()


def _extract_once(text: str) -> str:
    boxed = _boxed(text)
    if boxed is not None:
        return boxed.strip()
    starts = [found.end() for found in _ANSWER.finditer(text)]
    if starts:
        line = text[starts[-1] :].split("\n", 1)[0].strip()
        return line.removesuffix("**").strip() or text
    return text


def _boxed(text: str) -> str | None:
    r"""Return what stands in the last complete `\boxed{…}` that is not empty, braces inside balanced."""
    end = len(text)
    for _ in range(100):
        start = text.rfind("\\boxed{", 0, end)
        if start < 0:
            return None
        depth = 0
        for at in range(start + 6, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if depth == 0:
                inside = text[start + 7 : at]
                if inside.strip():
                    return inside
                break
        end = start
    return None


def _number(text: str) -> Fraction | None:
    """Return the exact value of a plain number or fraction, `None` for anything else."""
    if found := _NUMBER.fullmatch(text):
        sign, whole, part = found[1], found[2].replace(",", ""), found[3] or ""
        return Fraction(int(sign + whole + part), 10 ** len(part))
    if found := _FRACTION.fullmatch(text.replace(" ", "")):
        above, below = (found[1] + found[2], found[3]) if found[2] else (found[4], found[5])
        if above[:2] in ("+-", "-+", "--", "++") or int(below) == 0:
            return None
        return Fraction(int(above), int(below))
    return None
