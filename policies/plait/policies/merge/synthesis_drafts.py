"""Merge `synthesis-drafts`: the result of each branch as a record, for a planner to make a synthesis of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import SettlingTally

__all__ = ["SynthesisDrafts"]


class SynthesisDrafts(Merge):
    """The value is a list with one object for each branch that has text, in the join's order:

    `name`, `text`, `done` (false: stopped while it was writing), `tokens`, `logprob` (mean, or null), `answer` (as the
    task extracts it, or null), `key` (the answer's canonical form, or null), `verified` (true, false, or null where the
    task cannot tell or the branch is not done).

    Use it in a join that is `early` for `enough` and `stop_on_verified` to have an effect.
    """

    enough: Annotated[int | None, Free()] = Field(
        default=None,
        ge=1,
        description="Branches that need to be done: with 1 the first that ends decides (First-Finish, "
        "ParaThinker, arXiv 2509.04475). Without it all are waited for.",
    )
    partial: bool = Field(
        default=False,
        description="Keep what the others have written so far when `enough` are done. Only of steps that stream.",
    )
    stop_on_verified: bool = Field(
        default=False,
        description="What the task's verifier finds right ends the run: one such branch is enough by itself.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the records; `why` counts them."""
        records: list[JsonValue] = []
        done = right = 0
        for branch in branches:
            record = self._record(branch, task)
            if record is not None:
                records.append(record)
                done += record["done"] is True
                right += record["verified"] is True
        why = f"{done} of {len(branches)} drafts"
        if len(records) > done:
            why += f" and what {len(records) - done} others had written"
        if right:
            why += f"; {right} verified"
        return Verdict(value=records, why=why)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether `enough` branches are done, or one is verified."""
        if outstanding <= 0:
            return True
        # The others may still write: they are drafts as far as they have come.
        if self.enough is not None and sum(branch.done for branch in branches) >= self.enough:
            return True
        return self.stop_on_verified and any(
            record is not None and record["verified"] is True
            for record in (self._record(branch, task) for branch in branches if branch.done)
        )

    def tally(self, task: Task) -> SettlingTally:
        """Return a tally that looks for a verified draft, and counts those that are done."""

        def verified(branch: Branch) -> bool:
            record = self._record(branch, task) if self.stop_on_verified and branch.done else None
            return record is not None and record["verified"] is True

        return SettlingTally(verified, self.enough)

    def _record(self, branch: Branch, task: Task) -> dict[str, JsonValue] | None:
        if not branch.done or branch.result is None:
            text = branch.line if self.partial else ""
            if not text.strip():
                return None
            facts: dict[str, JsonValue] = {"answer": None, "key": None, "verified": None, "logprob": None}
            return {"name": branch.name, "text": text, "done": False, "tokens": branch.tokens, **facts}
        result = branch.result
        answer = None if result.value is None else task.extract(result.line)
        return {
            "name": branch.name,
            "text": result.line if result.value is not None else "",
            "done": True,
            "tokens": 0 if result.prior else result.length,  # of the whole text; 0: not counted
            "logprob": result.logprob,
            "answer": answer,
            "key": None if answer is None else task.key(answer),
            "verified": None if answer is None else task.verify(answer),
        }
