"""Task `sums`: compute a sum such as `14 - 3 * 4 + 9`, for the bundled model `arithmetic`, which errs on purpose.

The task suits votes: the model is often wrong, and arithmetic checks the only right answer.
"""

from __future__ import annotations

import math
import re

from pydantic import Field, JsonValue, PrivateAttr

from plait.core.errors import TaskError
from plait.core.task import Style, Task

__all__ = ["Sums"]

_TEXT = re.compile(r"\s*\d{1,3}(?:\s*[-+*]\s*\d{1,3}){1,15}\s*(?:=\s*\??)?\s*", re.ASCII)
_WORD = re.compile(r"\d+|[-+*]", re.ASCII)
_SAID = re.compile(r"<hit> (\d{1,3})(?!\w|[.,]\d)", re.ASCII)
_ALONE = re.compile(r"(\d{1,3})\s*(?:<end>)?", re.ASCII)
_LARGEST = 127
"""The model's largest number."""


class Sums(Task):
    """`14 - 3 * 4 + 9`: numbers and values 0..127 with + - *, three to six numbers in training. `*` comes first.

    An answer is a number.
    """

    skill: int = Field(default=2, ge=1, le=4, description="Skill of the voter: 1 is wrong most often, 4 most seldom.")

    _words: tuple[str, ...] = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        example = "write for example: 14 - 3 * 4 + 9"
        if len(self.text) > 200 or not _TEXT.fullmatch(self.text):
            shown = self.text if len(self.text) <= 60 else self.text[:57] + "…"
            raise TaskError(f"{shown!r} is not a sum of numbers with + - *; {example}")
        self._words = tuple(str(int(word)) if word.isdigit() else word for word in _WORD.findall(self.text))
        outside = [word for word in self._words if word.isdigit() and int(word) > _LARGEST]
        if outside:
            raise TaskError(f"{outside[0]} is out of range: numbers are 0..{_LARGEST}; {example}")

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt in the bundled model's words."""
        return f"<sum> {self.skill} {' '.join(self._words)} <go>"

    def extract(self, text: str) -> JsonValue:
        """Return the number after `<hit>`; a text that was cut off before it has none. A bare number is also an answer:
        the model writes one if asked for its current answer."""
        stated = _SAID.findall(text)
        alone = None if stated else _ALONE.fullmatch(text.strip())
        return int(stated[-1]) if stated else int(alone[1]) if alone else None

    def key(self, answer: JsonValue) -> str:
        """Return the number as text."""
        return str(answer).strip()

    def verify(self, answer: JsonValue) -> bool:
        """Return whether this is the sum's result."""
        return self.key(answer) == str(self.right())

    def right(self) -> int:
        """Return the value of the sum."""
        terms = re.findall(r"[-+]?\d+(?:\*\d+)*", "".join(self._words))
        return sum((-1) ** term.startswith("-") * math.prod(map(int, term.lstrip("+-").split("*"))) for term in terms)

    def steps(self, text: str) -> list[str]:
        """Return the operations that a text carries out."""
        return [" ".join(part.split()) for part in text.replace("<hit>", ";").split(";")[:-1] if "=" in part]
