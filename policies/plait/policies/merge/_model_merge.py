"""What merges that ask a model share: prompts from the branches' texts, and names of steps.

A merge cannot call a model. It returns more plan (`Verdict.patch`), and the output of that plan is its value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from plait.core.call_config import WithCallConfigs
from plait.core.declarations import TokenCount
from plait.core.interfaces import Merge
from plait.core.view import Branch

from .._ballots import format_names as named


class ModelMerge(WithCallConfigs, Merge):
    """Base of the merges that ask a model."""

    observation_chars: Annotated[int, TokenCount()] = Field(
        default=8000,
        ge=1,
        description="Maximum number of characters of one result in a prompt: the last ones of a branch's text, where "
        "the answer stands.",
    )

    def excerpt(self, text: str) -> str:
        """Return a text as the model is shown it."""
        text, most = text.strip(), self.observation_chars
        return text if len(text) <= most else f"[…] {text[-most:]}"


def list_texts(branches: Sequence[Branch]) -> list[Branch]:
    """Return the branches that are done and have any text."""
    done = [branch for branch in branches if branch.done and branch.text]
    return [branch for branch in done if branch.result and branch.result.value is not None]


def silent_note(branches: Sequence[Branch]) -> str:
    """Say which branches have no text to read: the end of a `why`, empty if all have one."""
    there = {branch.name for branch in list_texts(branches)}
    out = [branch.name for branch in branches if branch.name not in there]
    return f"; left out: {named(out)}" if out else ""


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return a name that none of the branches has: they are referred to in the same plan."""
    while name in taken:
        name += "-x"
    return name
