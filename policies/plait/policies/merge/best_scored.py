"""Merge `best-scored`: the one branch with the highest score, by a signal of its result or a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, cast

from pydantic import Field

from plait.core.addresses import resolve
from plait.core.declarations import CodeAddress
from plait.core.errors import PluginError
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import Class, Signal, build_verdict, confidence_signal, drop_ballots, no_vote_verdict, read_roll

__all__ = ["BestScored"]

Scorer = Callable[[str, str], float]


class BestScored(Merge):
    """Best-of-n by a scorer: no votes, one winner.

    By default the branch whose tokens had the highest mean log-probability (`logprobs=1` of the planner). `function` is
    a function of the question and a branch's text, `pkg.mod:fn`, that returns a number; it runs inside the machine, so
    it must be quick, and a function of its arguments alone. Branches without a score (or whose score is no finite
    number) are left out, and where none has one the join fails. Equal scores go to the earliest branch in the join's
    order."""

    criterion: Signal = Field(
        default="logprob",
        description="What decides: a signal; of `entropy` the lowest is best, of all others the highest.",
    )
    function: Annotated[str | None, CodeAddress()] = Field(
        default=None, pattern=r"^[\w.]+:\w+$", description="A function, `pkg.mod:fn`, to use in its place."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the score, the runner-up's and who was left out."""
        roll = read_roll(branches, task)
        if not roll.ballots:
            return no_vote_verdict(roll)
        scorer = load(self.function) if self.function is not None else None
        scores: dict[int, float] = {}
        for ballot in roll.ballots:
            number = (
                scorer(task.text, ballot.result.line)
                if scorer is not None
                else confidence_signal(ballot.result, self.criterion)
            )
            if number is not None and math.isfinite(number):
                scores[ballot.place] = float(number)
        if not scores:
            what = self.function or self.criterion
            raise PluginError(
                f"no branch has a score by {what}: ask for signals with logprobs in the planner's options"
            )
        roll, out = drop_ballots(roll, lambda ballot: ballot.place in scores)
        best = min(roll.ballots, key=lambda ballot: (-scores[ballot.place], ballot.place))
        others = [scores[ballot.place] for ballot in roll.ballots if ballot is not best]
        why = f"{self.function or self.criterion} {scores[best.place]:.4g}, best of {len(roll.ballots)}"
        why += f", margin {scores[best.place] - max(others):.4g}" if others else ""
        return build_verdict(Class(best), why, roll, [f"no score for {', '.join(out)}"] if out else [])


def load(path: str) -> Scorer:
    """Return a function by `pkg.mod:fn`. Raises `PluginError`."""
    return cast("Scorer", resolve(path, "scorer"))
