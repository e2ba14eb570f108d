"""Task `reasoning-gym`: the generated problems of Reasoning Gym (Stojanovski et al., arXiv 2505.24760)."""

from __future__ import annotations

import json
import re

from pydantic import Field, JsonValue, PrivateAttr, ValidationError

from plait.core.errors import TaskError
from plait.core.extras import extra
from plait.core.messages import did_you_mean
from plait.core.task import Style, Task
from plait.core.values import Frozen
from plait.core.vocabulary import FreeText

__all__ = ["ReasoningGym"]

_EXAMPLE = '{"family": "gsm_symbolic", "question": "Ann has 3 apples …"}'
_OPEN, _CLOSE = "<answer>", "</answer>"
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_SAID = re.compile(r"(?:answer is|answer:)([^\n]+)", re.IGNORECASE)


class GymProblem(Frozen):
    """What is asked."""

    family: str
    question: str


class ReasoningGym(Task):
    """`{"family": "gsm_symbolic", "question": …}`: a problem of one of over 100 families. The environment
    `reasoning-gym` grades by the family's own verifier:

        plait eval reasoning-gym:gsm_symbolic --model smollm2 --planner sample:n=8
    """

    set: FreeText = Field(default="gsm_symbolic", description="The set that questions are drawn from: a family.")
    _problem: GymProblem = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Read the text, or raise `TaskError`."""
        try:
            self._problem = GymProblem.model_validate_json(self.text)
        except (ValidationError, ValueError):
            raise TaskError(f"the request is not a problem of Reasoning Gym; write, for example: {_EXAMPLE}") from None

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the question, with the form of its answer."""
        return f"{self._problem.question}\n\nWrite the final answer between <answer> and </answer>."

    def chat(self) -> bool:
        """A user's message."""
        return True

    def extract(self, text: str) -> JsonValue:
        """Return the last tagged answer, else the last `\\boxed{…}`, else the answer stated in a line, else the last
        line."""
        head, tag, _ = text.rpartition(_CLOSE)
        if tag and _OPEN in head:
            return head.rpartition(_OPEN)[2].strip()
        for form in (_BOXED, _SAID):
            if answers := form.findall(text):
                return str(answers[-1]).strip().rstrip(".")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else None

    def key(self, answer: JsonValue) -> str:
        """Return the text, case and spaces apart; a number as its value."""
        text = " ".join((answer if isinstance(answer, str) else json.dumps(answer)).split()).casefold().strip("$ .")
        try:
            return f"{float(text.replace(',', '')):.12g}"
        except ValueError:
            return text

    @classmethod
    def drawn(cls, count: int, seed: int, *, set: str = "gsm_symbolic") -> list[tuple[str, JsonValue]]:
        """Return problems of a family, each with the entry for its verifier."""
        remedy = "Reasoning Gym is not installed: pip install 'plait[reasoning-gym]'"
        gym = extra("reasoning_gym", remedy, TaskError)
        try:
            dataset = gym.create_dataset(set, size=count, seed=seed)
        except ValueError as error:
            near = did_you_mean(set, extra("reasoning_gym.factory", remedy, TaskError).DATASETS)
            raise TaskError(f"Reasoning Gym has no family {set!r}{near}: {str(error)[:200]}") from None
        entries = [json.loads(json.dumps(dataset[place], default=str)) for place in range(count)]
        return [(json.dumps({"family": set, "question": entry["question"]}), entry) for entry in entries]
