"""Base of the merges that call a model: build prompts from the branches' texts, and choose step names.

A merge cannot call a model itself. It returns more plan (`Verdict.patch`), whose output becomes the merge's value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plait.core.call_config import WithCallConfigs
from plait.core.interfaces import Merge
from plait.core.view import Branch

from .._ballots import format_names as named

EXCERPT_CHARS = 8000
"""Characters of one result in a prompt: the last ones, where the answer stands."""


class ModelMerge(WithCallConfigs, Merge):
    """Base of the merges that ask a model."""

    def excerpt(self, text: str) -> str:
        """Return a text in the form that the prompt shows."""
        text = text.strip()
        return text if len(text) <= EXCERPT_CHARS else f"[…] {text[-EXCERPT_CHARS:]}"


def list_texts(branches: Sequence[Branch]) -> list[Branch]:
    """Return the finished branches that have text."""
    done = [branch for branch in branches if branch.done and branch.text]
    return [branch for branch in done if branch.result and branch.result.value is not None]


def silent_note(branches: Sequence[Branch]) -> str:
    """Return the end of a `why`, which names the branches without text; empty if all have text."""
    there = {branch.name for branch in list_texts(branches)}
    out = [branch.name for branch in branches if branch.name not in there]
    return f"; left out: {named(out)}" if out else ""


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return a name that no branch has, since the same plan refers to the branches."""
    while name in taken:
        name += "-x"
    return name
