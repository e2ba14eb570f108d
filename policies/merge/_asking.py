"""What merges that ask a model share: prompts from the branches' texts, and names of steps.

A merge cannot call a model. It returns more plan (`Verdict.patch`), and the output of that plan is its value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from plait.core.interfaces import Merge
from plait.core.ops import Sampling, StructuredOutput, Think
from plait.core.plan import Step
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import names as named


class Asking(Merge):
    """Base of the merges that ask a model."""

    tokens: int = Field(default=512, ge=1)
    """Most tokens of one call."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Of the calls; 0 is greedy."""
    model: str | None = None
    """Name of the model that is asked; any that a worker serves by default."""
    limit: int = Field(default=8000, ge=1)
    """Most characters of one branch's text that it is shown: the last ones, where the answer stands."""

    def call(self, task: Task, name: str, prompt: str, label: str, form: StructuredOutput | None = None) -> Step:
        """Return one call of the model."""
        sampling = Sampling(max_tokens=self.tokens, temperature=self.temperature, structured=form)
        return Step(
            name=name, op=Think(prompt=prompt, chat=task.chat(), sampling=sampling, model=self.model), label=label
        )

    def shown(self, text: str) -> str:
        """Return a text as the model is shown it."""
        text = text.strip()
        return text if len(text) <= self.limit else f"[…] {text[-self.limit :]}"


def texts(branches: Sequence[Branch]) -> list[Branch]:
    """Return the branches that are done and have any text."""
    return [each for each in branches if each.done and each.result and each.result.value is not None and each.text]


def silent(branches: Sequence[Branch]) -> str:
    """Say which branches have no text to read: the end of a `why`, empty if all have one."""
    there = {branch.name for branch in texts(branches)}
    out = [branch.name for branch in branches if branch.name not in there]
    return f"; left out: {named(out)}" if out else ""


def fresh(name: str, taken: Collection[str]) -> str:
    """Return a name that none of the branches has: they are referred to in the same plan."""
    while name in taken:
        name += "-x"
    return name
