"""Merges that take the best branch: `best-of` by the task's verifier, `best-scored` by a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, cast

from pydantic import Field, JsonValue

from plait.core.addresses import resolve
from plait.core.declarations import CodeAddress
from plait.core.errors import PluginError
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.view import Branch

from .._ballots import (
    Class,
    SettlingTally,
    Signal,
    build_verdict,
    confidence_signal,
    drop_ballots,
    list_absent,
    no_vote_verdict,
    read_claim,
    read_roll,
    read_truth,
)

__all__ = ["BestOf", "BestScored"]


class BestOf(Merge):
    """Best-of-n with a verifier.

    The value is the answer (as the task extracted it) of the first branch in the join's order whose answer is verified.
    Without one, the value is the most frequent answer that the verifier cannot judge (the earliest on a tie), and `why`
    reports it as not verified. Wrong answers are never returned: if all are wrong, the value is `null`.
    """

    votes: ClassVar[bool] = True
    verifies: ClassVar[bool] = True

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the numbers of right, wrong and unjudged answers."""
        unsure: dict[str, tuple[Branch, JsonValue, int]] = {}
        first: tuple[Branch, JsonValue] | None = None
        right = wrong = silent = judged = 0
        roll = read_roll(branches, task)
        stands_for = {ballot.branch.name: ballot.count for ballot in roll.ballots}
        for branch, answer in _read_answers(branches, task):
            truth = read_truth(branch, task)
            if answer is None:
                silent += 1
            elif truth is True:
                right += 1
                first = first or (branch, answer)
            elif truth is False:
                wrong += 1
            else:
                key = task.key(answer)
                who, what, votes = unsure.get(key, (branch, answer, 0))
                unsure[key] = who, what, votes + stands_for[branch.name]
                judged += 1
        total = sum(votes for _, _, votes in unsure.values())
        done = right + wrong + silent + judged
        counts = f"of {done} done, {right} right, {wrong} wrong, {judged} not judged, {silent} without an answer"
        counts = "; ".join([counts, *list_absent(roll)])
        if first is not None:
            return Verdict(value=first[1], why=f"verified; {counts}", winner=first[0].name, extracted=True)
        if unsure:
            branch, answer, votes = max(unsure.values(), key=lambda entry: entry[2])
            why = f"not verified, {votes} of {total} votes; {counts}"
            return Verdict(value=answer, why=why, winner=branch.name, extracted=True)
        return Verdict(value=None, why=f"no answer that could be right; {counts}")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether a branch's answer is verified: further answers cannot be better."""
        if outstanding <= 0:
            return True
        return any(read_truth(branch, task) is True for branch in branches)

    def tally(self, task: Task) -> SettlingTally:
        """Return a tally that looks for the first verified answer."""
        return SettlingTally(lambda branch: read_truth(branch, task) is True)


def _read_answers(branches: Sequence[Branch], task: Task) -> list[tuple[Branch, JsonValue]]:
    """Return each branch that is done with the answer it claims, or `None`."""
    claims = [(branch, read_claim(branch, task)) for branch in branches if branch.done and branch.result is not None]
    return [(branch, None if claim is None else claim[0]) for branch, claim in claims]


Scorer = Callable[[str, str], float]


class BestScored(Merge):
    """Best-of-n by a scorer, without votes.

    By default the branch with the highest mean log-probability of its tokens wins (`logprobs=1` of the planner).
    `function` (`pkg.mod:fn`) takes the question and a branch's text and returns a number. It runs inside the machine,
    so it must be quick and pure. Branches without a finite score are left out; the join fails if no branch has one. On
    equal scores the earliest branch in the join's order wins."""

    criterion: Signal = Field(
        default="logprob",
        description="What decides: a signal; of `entropy` the lowest is best, of all others the highest.",
    )
    function: Annotated[str | None, CodeAddress()] = Field(
        default=None, pattern=r"^[\w.]+:\w+$", description="A function, `pkg.mod:fn`, to use in its place."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` has the score, the runner-up's score and the excluded branches."""
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
    """Return the function that `pkg.mod:fn` names. Raises `PluginError`."""
    return cast("Scorer", resolve(path, "scorer"))
