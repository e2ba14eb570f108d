"""Merge `scratchpad`: the observations of a plan's tasks, failures included, as text for the model's next call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from plait.core.declarations import Free, TokenCount
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

__all__ = ["Scratchpad"]


class ScratchpadAction(Frozen):
    """One action."""

    text: str
    """The planned action: `2. search("x")`."""
    branch: str | None = None
    """Name of the branch that ran the action. Without a branch the action was not run; `error` has the reason."""
    thought: str = ""
    """The thought before the action."""
    error: str = ""
    """The reason why the action was not run."""


class Scratchpad(Merge):
    """Writes one block for each action, in plan order: `Thought: …` if there is one, the action, `Observation: …`.

    A tool's result is text and is never parsed as an action or a reference. The observation of a failed task is its
    error. The observation of a task that was not run is the reason. Use this merge in a join that tolerates failures.
    """

    actions: Annotated[tuple[ScratchpadAction, ...], Free()] = Field(
        default=(), description="The actions. Empty: one for each branch, in the join's order, under its name."
    )
    earlier: FreeText | None = Field(
        default=None, description="Branch whose text comes first, as it is: an earlier scratchpad."
    )
    observation_chars: Annotated[int | None, TokenCount()] = Field(
        default=None,
        ge=1,
        description="Maximum number of characters of one result in a prompt: an observation; the rest is left out.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the text; `why` counts the outcomes of the actions."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.actions or tuple(
            ScratchpadAction(text=branch.name, branch=branch.name) for branch in branches if branch.name != self.earlier
        )
        earlier = by_name.get(self.earlier) if self.earlier is not None else None
        blocks = [earlier.result.text] if earlier is not None and earlier.result is not None else []
        done = 0
        for entry in entries:
            branch = by_name.get(entry.branch) if entry.branch is not None else None
            done += branch is not None and branch.result is not None
            thought = f"Thought: {entry.thought}\n" if entry.thought else ""
            blocks.append(f"{thought}{entry.text}\nObservation: {self._observation(entry, branch)}\n")
        why = f"{done} of {len(entries)} actions gave a result"
        return Verdict(value="".join(blocks), why=why)

    def _observation(self, entry: ScratchpadAction, branch: Branch | None) -> str:
        if branch is None:
            return f"not run: {entry.error or 'it was no part of the plan'}"
        if branch.result is not None:
            text = branch.result.text
            if self.observation_chars is not None and len(text) > self.observation_chars:
                return f"{text[: self.observation_chars]}… ({len(text) - self.observation_chars} more characters)"
            return text
        if branch.failure is None:
            return f"none: the task was {'stopped' if branch.state.ended else 'not done in time'}"
        if branch.failure.kind == "DependencyFailed":
            return f"not run, because a task that it needs failed: {branch.failure.message}"
        return f"error: {branch.failure.message}"
