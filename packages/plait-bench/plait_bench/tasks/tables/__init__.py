"""Task `tables`: questions over tables in a closed language, for planners of tools.

The bundled model `tables` plans the calls that answer them. The facts are invented, and the same for a seed, so every
answer can be checked.
"""

from __future__ import annotations

import re

from pydantic import Field, JsonValue, PrivateAttr

from plait.core.errors import TaskError
from plait.core.messages import did_you_mean
from plait.core.task import Style, Task
from plait.core.tools.tool import Tool

from . import language
from .language import NAMES, Question
from .questions import LATENCY, Facts, answer, made_tools, names_in

__all__ = ["Tables"]

_ANSWER = re.compile(
    r"(?:\b([Nn]ot|[a-z]+n't) )?(?<![\w.,])(true|false|-?[0-9]{1,18}|[A-Z][a-z]+)(?!\w|[.,][0-9])", re.ASCII
)


class Tables(Task):
    """`what is the sum of Ardan's owner's age and 31?`: look-ups, arithmetic, comparisons, most and least,
    counts and conditions (`plait_bench.tasks.tables.language`).

    An answer is a number, a name, or `true` or `false`. The task provides the tools that know the facts.
    """

    seed: int = Field(default=0, description="Another seed, another choice: of facts.")
    slots: bool = Field(
        default=True,
        description="Show names and numbers to the model as `s0`, `n0`, …, which is what the bundled model was "
        "trained on. The tools read both.",
    )
    latency: tuple[float, float] = Field(
        default=LATENCY, description="Least and most seconds of a look-up; what each takes is fixed by field and name."
    )
    failing: float = Field(
        default=0.0,
        description="Share of look-ups that fail the first time that they are made; the second time they do not.",
    )

    _question: Question = PrivateAttr()
    _shown: str = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        self._question = language.read(self.text)
        for name in names_in(self._question):
            if name not in NAMES:
                raise TaskError(f"there is no {name!r} in the tables{did_you_mean(name, NAMES)}; {language.EXAMPLE}")
        self._shown = language.slots(self.text)[0] if self.slots else language.words(self._question)

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question, by default with slots in it."""
        return self._shown

    def chat(self) -> bool:
        """Render prompts by the model's chat template, which keeps their text but tokenizes it as a whole."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the text if it is a number, name, `true` or `false`; else the last of these in the text, or `None`.
        `not true` is `false`."""
        answers = _ANSWER.findall(text.replace("\N{MINUS SIGN}", "-"))
        if not answers:
            return None
        denied, word = answers[-1]
        value = _value(word)
        return not value if denied and isinstance(value, bool) else value

    def key(self, answer: JsonValue) -> str:
        """Return the answer as text."""
        value = _value(answer) if isinstance(answer, str) else answer
        return str(value).strip()

    def verify(self, answer: JsonValue) -> bool:
        """Return whether the answer follows from the facts."""
        return self.key(answer) == self.key(self.right())

    def tools(self) -> list[Tool[..., object]]:
        """Return look-ups and arithmetic."""
        return made_tools(self.text, self.seed, self.latency, self.failing)

    def right(self) -> JsonValue:
        """Return the right answer."""
        return answer(self._question, Facts(self.seed))


def _value(text: str) -> JsonValue:
    """Return the value of an answer's text."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
