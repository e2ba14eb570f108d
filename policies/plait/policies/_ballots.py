"""Ballots of a join: classes of equal answers, branches without a vote, tie breaks and explained verdicts. The task
decides which answers are equal."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import JsonValue

from plait.core.errors import PluginError
from plait.core.interfaces import Verdict
from plait.core.result import Result
from plait.core.states import State
from plait.core.task import Task
from plait.core.view import Branch

from ._actions import Actions

Claim = tuple[JsonValue, str] | None
"""An answer and its key."""
Signal = Literal["logprob", "mean", "tail", "bottom", "lowest", "entropy", "certainty"]
"""Signals of the model's confidence in a result."""


@dataclass(slots=True)  # Not frozen, because thousands are created at a time.
class Ballot:
    """One branch's vote."""

    place: int
    """The branch's place in the join's order, from 0."""
    branch: Branch
    answer: JsonValue
    key: str
    count: int = 1
    """Votes of this branch: its own votes, and one for each branch that was merged into it (`Stop.merged_into`)."""

    @property
    def result(self) -> Result:
        """The branch's result."""
        assert self.branch.result is not None
        return self.branch.result


@dataclass(slots=True)
class Roll:
    """All branches of a join, as voters."""

    ballots: list[Ballot]
    """Ballots of the finished branches with an answer, in the join's order."""
    silent: list[str]
    """Finished branches without an answer."""
    missing: list[str]
    """Branches that are not done, each with its state, without the branches that were merged into another one."""
    pending: int
    """Number of cancelled branches that were merged into a branch that has not ended yet."""
    n: int
    """Number of all branches."""

    @property
    def votes(self) -> int:
        """Votes cast."""
        return sum(ballot.count for ballot in self.ballots)


@dataclass(slots=True)
class Class:
    """Ballots for one answer."""

    first: Ballot
    """The earliest of these ballots in the join's order."""
    ballots: list[Ballot] = field(default_factory=list[Ballot])
    votes: int = 0
    weight: float = 0.0


@dataclass(slots=True)
class _ReadAnswer:
    """The answer of a result, and the verifier's judgement of this answer."""

    task: weakref.ref[Task]
    result: weakref.ref[Result]
    claim: Claim
    judged: bool = False
    truth: bool | None = None


_MEMO: dict[str, _ReadAnswer] = {}
_MEMO_SIZE = 16_384


def read_claim(branch: Branch, task: Task) -> Claim:
    """Return the answer of a finished branch with its key, or `None`. Cached: each task reads a text once."""
    known = _read_answer(branch, task)
    return None if known is None else known.claim


def read_truth(branch: Branch, task: Task) -> bool | None:
    """Return the verifier's judgement of a branch's answer. Cached."""
    known = _read_answer(branch, task)
    if known is None or known.claim is None:
        return None
    if not known.judged:
        known.truth, known.judged = task.verify(known.claim[0]), True
    return known.truth


def _read_answer(branch: Branch, task: Task) -> _ReadAnswer | None:
    result = branch.result
    if not branch.done or result is None or result.value is None:
        return None
    known = _MEMO.get(branch.step)
    # A merge runs after each ended branch. Reading all branches again each time would take quadratic time.
    if known is not None and known.task() is task and known.result() is result:
        return known
    if result.extracted:
        answer = result.value
    else:
        answer = task.extract(result.text if isinstance(task, Actions) else result.line)
    claim = None if answer is None else (answer, task.key(answer))
    if len(_MEMO) >= _MEMO_SIZE:
        # Half of the entries are dropped at once: dropping one for each new entry would scan the list every time.
        for step in list(_MEMO)[: _MEMO_SIZE // 2]:
            _MEMO.pop(step, None)
    known = _MEMO[branch.step] = _ReadAnswer(weakref.ref(task), weakref.ref(result), claim)
    return known


def read_roll(branches: Sequence[Branch], task: Task, weights: Mapping[str, int] | None = None) -> Roll:
    """Return the roll of a join's branches. `weights`: votes of a branch, by its name; 1 where it has none."""
    tally = count_votes(branches, task, weights)
    roll = Roll([], [], [], tally.pending, len(branches))
    for place, branch in enumerate(branches):
        votes = tally.by_step.get(branch.step, 0)
        if branch.state is State.DONE:
            claim = read_claim(branch, task)
            if claim is None:
                roll.silent.append(branch.name)
            else:
                roll.ballots.append(Ballot(place, branch, claim[0], claim[1], votes))
        elif branch.merged_into is None:
            more = votes - 1 if branch.state.ended else votes + tally.own_votes(branch) - 1
            with_it = f" with {more} like it" if more else ""
            roll.missing.append(f"{branch.name} {branch.state}{with_it}")
    return roll


def count_votes(branches: Iterable[Branch], task: Task, weights: Mapping[str, int] | None = None) -> VoteTally:
    """Return the tally of a join's branches."""
    tally = VoteTally(task, weights)
    for branch in branches:
        if branch.state.ended:
            tally.ended(branch)
    return tally


class SettlingTally:
    """Finds a branch that decides a join alone, or counts up to `enough` finished branches (`Tally`)."""

    def __init__(self, settles: Callable[[Branch], bool], enough: int | None = None) -> None:
        self._settles, self._enough = settles, enough
        self._seen: set[str] = set()
        self._done, self._found = 0, False

    def ended(self, branch: Branch) -> None:
        """Look at a branch that has ended."""
        if branch.step not in self._seen:
            self._seen.add(branch.step)
            self._done += branch.done
            self._found = self._found or self._settles(branch)

    def decided(self, outstanding: int) -> bool:
        """Return whether a deciding branch was found, or enough branches are done."""
        return outstanding <= 0 or self._found or (self._enough is not None and self._done >= self._enough)


class Fold(Protocol):
    """A rule's state, which takes in the branches of a vote as they end."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        """Add a branch that has ended, with the key of its answer and its votes. A branch that was merged into another
        one has the other one's key and 0 votes."""
        ...


F = TypeVar("F", bound=Fold)


class VoteTally:
    """Counts the votes of a join's branches as they end (`Tally`), in constant time for each branch."""

    def __init__(self, task: Task, weights: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = {}
        """Votes of each answer, by its key."""
        self.votes: int = 0
        """Number of all votes in `counts`."""
        self.top: int
        self.second: int
        self.top = self.second = 0
        """Votes of the first and of the second answer."""
        self._task, self._weights = task, weights or {}
        self._first: str | None = None
        self.pending: int = sum(self._weights.values()) - len(self._weights)
        """Further votes of branches that have not ended, beside the one vote that each branch has."""
        self.by_step: dict[str, int] = {}
        """Votes of a branch, by its step: its own votes once it has ended, and the votes of branches merged into it."""
        self._ended: dict[str, tuple[Branch, str | None]] = {}
        """Ended branches with the key of their answer, by step, in the order in which they ended."""
        self._merged_into: dict[str, str] = {}
        """The step that votes in place of a step, by the latter."""
        self._folds: dict[object, tuple[Any, int]] = {}

    @property
    def is_plain(self) -> bool:
        """Whether every branch has one vote of its own."""
        return not self._weights

    def own_votes(self, branch: Branch) -> int:
        """Return the votes of a branch, without the votes of branches merged into it."""
        return self._weights.get(branch.name, 1)

    def fold(self, criterion: object, make: Callable[[], F]) -> F:
        """Return the state that `make` creates, with each ended branch added once. `criterion` is the key of the
        state."""
        if self._merged_into:  # the key and votes of a branch may still change
            state = make()
            for step, (branch, _) in self._ended.items():
                state.ended(branch, self._ended.get(self._voter_of(step), (branch, None))[1], self.by_step.get(step, 0))
            return state
        state, count = self._folds.get(criterion) or (make(), 0)
        for branch, key in islice(self._ended.values(), count, None):
            state.ended(branch, key, 1)
        self._folds[criterion] = state, len(self._ended)
        return state

    def ended(self, branch: Branch) -> None:
        """Add the votes of a branch that has ended."""
        step = branch.step
        # A branch that is reported twice votes once.
        if step in self._ended:
            return
        waiting, own = self.by_step.pop(step, 0), self.own_votes(branch)
        self.pending -= waiting + own - 1
        if branch.merged_into is not None and not branch.done:
            self._ended[step] = branch, None
            self._merged_into[step] = branch.merged_into
            self._add(branch.merged_into, waiting + 1)
            return
        claim = read_claim(branch, self._task)
        self._ended[step] = branch, None if claim is None else claim[1]
        self._add(step, waiting + own)

    def decided(self, outstanding: int) -> bool:
        """Return whether the lead exceeds the outstanding votes."""
        return outstanding <= 0 or self.top - self.second > outstanding + self.pending

    def _voter_of(self, step: str) -> str:
        """Return the step that votes in place of a step, or "" for branches that were merged in a circle."""
        for _ in range(len(self._merged_into) + 1):
            if step not in self._merged_into:
                return step
            step = self._merged_into[step]
        return ""

    def _add(self, step: str, votes: int) -> None:
        """Add votes to a step, or to the step that votes in its place."""
        if not (step := self._voter_of(step)):
            return
        self.by_step[step] = self.by_step.get(step, 0) + votes
        if step not in self._ended:
            self.pending += votes
            return
        key = self._ended[step][1]
        if key is None:
            return
        self.votes += votes
        now = self.counts[key] = self.counts.get(key, 0) + votes
        if key == self._first:
            self.top = now
        elif now > self.top:
            self.top, self.second, self._first = now, self.top, key
        else:
            self.second = max(self.second, now)


class OpenTally(VoteTally):
    """The votes of a merge that is never certain before all branches have ended."""

    def decided(self, outstanding: int) -> bool:
        """Return `False`."""
        return False


class OpenVote:
    """A mixin for merges that vote and are never certain before all branches have ended."""

    votes: ClassVar[bool] = True

    def tally(self, task: Task) -> OpenTally:
        """Return an empty tally for the rules that stop votes."""
        return OpenTally(task)


def group_by_answer(ballots: Sequence[Ballot], weight: Callable[[Ballot], float] | None = None) -> list[Class]:
    """Return the answers in the order of their first voters. A ballot's weight (1 by default) counts once for every
    branch that it represents."""
    groups: dict[str, Class] = {}
    for ballot in ballots:
        group = groups.get(ballot.key)
        if group is None:
            group = groups[ballot.key] = Class(ballot)
        group.ballots.append(ballot)
        group.votes += ballot.count
        group.weight += ballot.count * (1.0 if weight is None else weight(ballot))
    return list(groups.values())


def find_winner(counted: Sequence[Class]) -> tuple[Class, str]:
    """Return the class with the most votes, and how a tie was settled: by the sum of the voters' mean
    log-probabilities, if every voter of the tied classes has one, else by order."""
    top = max(group.votes for group in counted)
    tied = [group for group in counted if group.votes == top]
    if len(tied) == 1:
        return tied[0], ""
    scores = [_logprob(group) for group in tied]
    known = [score for score in scores if score is not None]
    # A class must not lose because it has no log-probabilities.
    if len(known) < len(tied):
        return tied[0], f", a tie of {len(tied)} settled by order"
    best = min(zip(known, tied, strict=True), key=lambda pair: (-pair[0], pair[1].first.place))[1]
    return best, f", a tie of {len(tied)} settled by log-probability"


def _logprob(group: Class) -> float | None:
    """Return the sum of the voters' mean log-probabilities, or `None` if a voter has none."""
    known = [ballot.count * ballot.result.logprob for ballot in group.ballots if ballot.result.logprob is not None]
    return math.fsum(known) if len(known) == len(group.ballots) else None


def top_two(votes: Iterable[int]) -> tuple[int, int]:
    """Return the highest and the second highest count; a missing count is 0."""
    top = second = 0
    for vote in votes:
        if vote > top:
            top, second = vote, top
        elif vote > second:
            second = vote
    return top, second


def weigh_votes(roll: Roll, weight: Callable[[Ballot], float], what: str, left_out: Sequence[str] = ()) -> Verdict:
    """Return the answer whose ballots have the greatest total weight.

    Ties go to the answer with more votes, then to the one whose first voter comes earliest in the join's order. `what`
    names the weight. `left_out` has remarks on branches that were excluded before.
    """
    counted = group_by_answer(roll.ballots, weight)
    if not counted:
        return no_vote_verdict(roll, left_out)
    best = min(counted, key=lambda group: (-group.weight, -group.votes, group.first.place))
    others = [group for group in counted if group is not best]
    second = max((group.weight for group in others), default=0.0)
    total = math.fsum(group.weight for group in counted)
    margin = _format_figure(best.weight - second)
    why = f"{what} {_format_figure(best.weight)} of {_format_figure(total)}, margin {margin}"
    why += f"; {best.votes} of {roll.votes} votes in {_format_count(len(counted), 'answer')}"
    tied = sum(group.weight == best.weight for group in counted)
    if tied > 1:
        more = sum(group.weight == best.weight and group.votes == best.votes for group in counted)
        why += f", a tie of {tied} settled by {'order' if more > 1 else 'votes'}"
    most = max(others, key=lambda group: group.votes, default=None)
    if most is not None and most.votes > best.votes:
        why += f", against the majority of {most.votes}"
    return build_verdict(best, why, roll, left_out)


def build_verdict(best: Class, why: str, roll: Roll, left_out: Sequence[str] = ()) -> Verdict:
    """Return a class's answer as a verdict; `why` ends with the branches that did not vote."""
    why_all = "; ".join([why, *left_out, *list_absent(roll)])
    return Verdict(value=best.first.answer, why=why_all, winner=best.first.branch.name, extracted=True)


def no_vote_verdict(roll: Roll, left_out: Sequence[str] = ()) -> Verdict:
    """Return the verdict of a vote without a voter."""
    return Verdict(value=None, why="; ".join([f"no votes in {roll.n} branches", *left_out, *list_absent(roll)]))


def list_absent(roll: Roll) -> list[str]:
    """Return remarks on the branches that did not vote."""
    reasons = [f"no answer in {format_names(roll.silent)}"] if roll.silent else []
    if roll.missing:
        reasons.append(f"not counted: {format_names(roll.missing)}")
    merged = sum(ballot.count - 1 for ballot in roll.ballots)
    if merged:
        reasons.append(f"{merged} given up as redundant, counted with those like them")
    return reasons


def drop_ballots(roll: Roll, keep: Callable[[Ballot], bool]) -> tuple[Roll, list[str]]:
    """Return a roll without some ballots, and the names of their branches."""
    kept = [ballot for ballot in roll.ballots if keep(ballot)]
    out = [ballot.branch.name for ballot in roll.ballots if not keep(ballot)]
    return Roll(kept, roll.silent, roll.missing, roll.pending, roll.n), out


def measure_ballots(
    roll: Roll, value: Callable[[Result], float | None], what: str, remedy: str
) -> tuple[Roll, dict[int, float], list[str]]:
    """Return the ballots that have a value, the values by place, and remarks on the branches without a value.

    Raises `PluginError` if there are ballots and none has a value.
    """
    figures = {ballot.place: number for ballot in roll.ballots if (number := value(ballot.result)) is not None}
    if roll.ballots and not figures:
        raise PluginError(f"no branch says its {what}: {remedy}")
    kept, out = drop_ballots(roll, lambda ballot: ballot.place in figures)
    return kept, figures, [f"no {what} in {format_names(out)}"] if out else []


def confidence_signal(result: Result, by: Signal) -> float | None:
    """Return a result's confidence signal in nats, or `None`. Entropy is negated, so a higher signal is surer."""
    if by == "logprob":
        return result.logprob
    signals = result.signals
    if signals is None:
        return None
    match by:
        case "mean":
            return signals.confidence
        case "entropy":
            return -signals.entropy
        case "tail" | "bottom" | "lowest" | "certainty":
            return getattr(signals, by)


def clip(figures: dict[int, float], cap: float | None) -> dict[int, float]:
    """Return the values, clipped to the range from median / `cap` to median * `cap`."""
    if cap is None or not figures:
        return figures
    middle = percentile(list(figures.values()), 50.0)
    low, high = middle / cap, middle * cap
    return {place: min(max(figure, low), high) for place, figure in figures.items()}


def percentile(figures: Sequence[float], percent: float) -> float:
    """Return a percentile with linear interpolation, as `numpy.percentile` does by default (percent in 0..100)."""
    ordered = sorted(figures)
    at = (len(ordered) - 1) * percent / 100.0
    low = min(math.floor(at), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def format_names(listed: Sequence[str]) -> str:
    """Return the first five names and the number of further names."""
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


def strip_thoughts(text: str, *, open_ended: bool = False) -> str:
    """Return a text without its first `<think>` block. `open_ended` also removes a block that was cut off."""
    start = text.find("<think>")
    end = text.find("</think>", start) if start >= 0 else -1
    if end >= 0:
        return text[:start].rstrip() + text[end + len("</think>") :]
    return text[:start] if start >= 0 and open_ended else text


def _format_count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _format_figure(value: float) -> str:
    return f"{value:.4g}"


EDGE = 1e-3
"""Votes' confidence is clipped to the range from EDGE to 1 - EDGE."""


def vote_confidence(result: Result, by: Signal, temperature: float) -> float:
    """Return c = exp(signal / temperature) of a vote, within `EDGE` of 0 and 1. Raises `PluginError` without the
    signal."""
    value = confidence_signal(result, by)
    if value is None:
        raise PluginError(f"a branch does not say its {by}: ask for it with logprobs in the planner")
    return min(max(math.exp(min(0.0, value) / temperature), EDGE), 1 - EDGE)


class AnswerPosterior:
    """The probability of each answer being right, under a uniform prior (CGES, arXiv 2511.02603).

    A vote for answer A of confidence c has the likelihood c if A is right, and (1 - c) / (K - 1) if another of the K
    answers is. K counts the answers seen and one unseen answer.
    """

    def __init__(self) -> None:
        self.votes: dict[str, int] = {}
        """Votes of an answer, by its key."""
        self._wrong = 0.0
        """Sum of ln(1 - c) of all votes."""
        self._own: dict[str, float] = {}
        """Sum of ln c - ln(1 - c) of the votes for an answer, by its key."""

    def add(self, key: str, sure: float, votes: int = 1) -> None:
        """Count votes for an answer, of confidence `sure` each."""
        wrong = math.log(1 - sure)
        self._wrong += votes * wrong
        self._own[key] = self._own.get(key, 0.0) + votes * (math.log(sure) - wrong)
        self.votes[key] = self.votes.get(key, 0) + votes

    def chances(self) -> Mapping[str, float]:
        """Return the posterior of each answer seen, by its key. The remainder up to 1 belongs to the unseen answer."""
        spread = math.log(max(1, len(self._own)))  # of K - 1: those seen but one, and the unseen one
        none = self._wrong - sum(self.votes.values()) * spread
        logs = {key: none + more + self.votes[key] * spread for key, more in self._own.items()}
        top = max([*logs.values(), none])
        total = math.fsum(math.exp(log - top) for log in [*logs.values(), none])
        return {key: math.exp(log - top) / total for key, log in logs.items()}
