"""Base of the stop rules: find the votes that an event affects, and the branches to cancel when a vote is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from plait.core.events import Event, Failed, Succeeded
from plait.core.interfaces import Policy, Stop
from plait.core.ops import Join
from plait.core.task import Task
from plait.core.view import Branch, StepView, View

from ._ballots import F, VoteTally, count_votes


class Poll:
    """A running vote, for a rule that may end it."""

    def __init__(
        self, branches: Sequence[Branch] | Callable[[], Sequence[Branch]], task: Task, tally: object = None
    ) -> None:
        self.task: Task
        self._branches, self.task = branches, task
        # If the join's merge counts the votes anyway, the branches need not be read.
        self._tally = tally if isinstance(tally, VoteTally) and tally.is_plain else count_votes(self.branches, task)

    def fold(self, criterion: object, make: Callable[[], F]) -> F:
        """Return the state that `make` creates, with all ended branches added. A vote's tally keeps the state under the
        key `criterion`, so each branch is read once, in the order in which the branches end."""
        return self._tally.fold(criterion, make)

    @cached_property
    def branches(self) -> Sequence[Branch]:
        """All branches, in the join's order."""
        return self._branches() if callable(self._branches) else self._branches

    @property
    def counts(self) -> Mapping[str, int]:
        """Votes of each answer, by its key."""
        return self._tally.counts

    @property
    def votes(self) -> int:
        """Votes cast."""
        return self._tally.votes

    def lead(self) -> tuple[int, int]:
        """Return the votes of the first answer and the votes of the second answer."""
        return self._tally.top, self._tally.second


class StopRule(Policy):
    """Base of the rules that end a vote. As soon as `enough` returns a reason, the rule cancels all branches that have
    not ended. It affects only joins that count votes (`Merge.votes`) with `on_failure="best-effort"`, and only branches
    that no other step reads."""

    def enough(self, poll: Poll) -> str | None:
        """Return why no more votes are needed, or `None`."""
        raise NotImplementedError

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the unfinished branches of every vote that this event ends."""
        if not isinstance(event, Succeeded | Failed) or view.subject is None:
            return ()
        stops: dict[str, Stop] = {}
        for join in tolerant_votes(view.subject):
            if not join.outstanding:
                continue
            poll = Poll(join.branches, join.reads(), join.tally)
            reason = self.enough(poll)
            if reason is not None:
                stops.update(stop_rest(join, poll.branches, reason, view))
        return tuple(stops.values())


def tolerant_votes(step: StepView) -> list[StepView]:
    """Return the `best-effort` votes that read a step, or that read another step which this step has just completed."""
    return [join for join in tolerant_joins(step) if join.votes]


def tolerant_joins(step: StepView) -> list[StepView]:
    """Return the `best-effort` joins that read a step, or another step which this step has just completed."""
    joins: list[StepView] = []
    at: StepView | None = step
    while at is not None:
        for reader in at.consumers:
            op = reader.plan.op
            if isinstance(op, Join) and op.on_failure == "best-effort" and reader not in joins:
                joins.append(reader)
        at = at.owner if at.state.ended else None
    return joins


def stop_rest(join: StepView, branches: Sequence[Branch], reason: str, view: View) -> Iterator[tuple[str, Stop]]:
    """Yield the id of each branch that has not ended, with the action that cancels it."""
    why = f"{join.plan.name} is decided: {reason}"
    for branch in branches:
        if not branch.state.ended and is_only_for(join, branch, view):
            yield branch.step, Stop(branch.step, why)


def is_only_for(join: StepView, branch: Branch, view: View) -> bool:
    """Return whether the join is a branch's only reader."""
    step = view.step(branch.step)
    return step is not None and all(reader == join for reader in step.consumers)
