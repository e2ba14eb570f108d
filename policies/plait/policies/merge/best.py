"""Merges that take the best branch: `best-of` by the task's verifier, `best-scored` by a score, `judged` by a model's
marks, `pairwise` by a tournament in which a model chooses the better of two answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, cast

from pydantic import Field, JsonValue

from plait.core.addresses import resolve
from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import CodeAddress, Free
from plait.core.errors import PluginError
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.sampling import StructuredOutput
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import (
    Class,
    OpenVote,
    SettlingTally,
    Signal,
    build_verdict,
    confidence_signal,
    drop_ballots,
    group_by_answer,
    list_absent,
    no_vote_verdict,
    read_claim,
    read_roll,
    read_truth,
)
from ._model_merge import ModelMerge, unique_name

__all__ = ["BestOf", "BestScored", "Judged", "Pairwise"]


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
        description="Criterion: a signal; of `entropy` the lowest is best, of all others the highest.",
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


_MARK = """\
{question}

An answer to this:
{answer}

How likely is this answer right? Give a mark from 0 (surely wrong) to {best} (surely right).
Mark:"""
_NUMBER = re.compile(r"(?<![\w.])\d++(?:\.\d++)?(?![\w.]*\d)")


class CandidateMark(Frozen):
    """A candidate."""

    branch: str
    """The first branch that gave this answer."""
    call: str
    """The step that marks this answer."""
    votes: int
    """Number of branches that gave this answer."""


class Judged(OpenVote, ModelMerge):
    """Best-of-n with a model as the scorer: it gives every different answer a mark from 0 to `best`.

    Equal answers are marked once; a single answer is not marked. The highest mark wins; ties go to the answer with more
    votes, then to the answer whose first voter comes earliest. The mark is the last number in the judge's reply (`8`,
    `8/10`, `8 out of 10`). An answer whose call fails, or gives no number from 0 to `best`, loses to any answer with a
    mark. The join expands into the calls.
    """

    best: Annotated[int, Free()] = Field(default=10, ge=1, description="The highest mark.")
    judge: Annotated[CallConfig, Uses("question", "answer", "best")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0),
        description="Marks an answer. Its template has `{question}`, `{answer}`, and `{best}`, the highest mark.",
    )
    marks: Annotated[tuple[CandidateMark, ...], Free()] = Field(
        default=(), description="What has been marked; set by the merge itself."
    )
    left_out: Annotated[tuple[str, ...], Free()] = Field(
        default=(), description="Who did not vote, and why; set by the merge itself."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the answer with the best mark, or the calls as more plan; `why` has the marks."""
        if self.marks:
            return self._best({branch.name: branch for branch in branches}, task)
        roll = read_roll(branches, task)
        counted = sorted(group_by_answer(roll.ballots), key=lambda group: (-group.votes, group.first.place))
        if not counted:
            return no_vote_verdict(roll)
        why = f"{len(counted)} different answers of {roll.votes} votes"
        if len(counted) == 1:
            only = counted[0].first
            nothing = "; ".join([f"nothing to mark: {why}", *list_absent(roll)])
            return Verdict(value=only.answer, why=nothing, winner=only.branch.name, extracted=True)
        names = [group.first.branch.name for group in counted]
        calls: list[Step] = []
        entries: list[CandidateMark] = []
        for i, group in enumerate(counted, 1):
            text = self.excerpt(group.first.branch.line)
            pieces = self.judge.text(_MARK, question=task.render(), answer=text, best=str(self.best))
            label = f"mark {group.first.branch.name}"
            calls.append(ask_model(task, unique_name(f"mark-{i}", names), pieces, self.judge, label=label))
            entries.append(CandidateMark(branch=group.first.branch.name, call=calls[-1].name, votes=group.votes))
        update = {"marks": tuple(entries), "left_out": tuple(list_absent(roll))}
        options: dict[str, JsonValue] = self.model_copy(update=update).model_dump(mode="json")
        op = Join(merge=Plugin(name="judged", options=options), on_failure="any-end")
        end = Step(
            name=unique_name("marks", names), op=op, needs=(*(call.name for call in calls), *names), label="marks"
        )
        return Verdict(value=None, why=why, patch=Plan(steps=(*calls, end), output=end.name))

    def _best(self, by_name: dict[str, Branch], task: Task) -> Verdict:
        marks = [self._mark(by_name.get(entry.call)) for entry in self.marks]
        at = max(range(len(marks)), key=lambda i: (-1.0 if marks[i] is None else marks[i], self.marks[i].votes, -i))
        best = self.marks[at]
        claim = read_claim(by_name[best.branch], task)
        shown = ", ".join(f"{entry.branch} {_format_mark(mark)}" for entry, mark in zip(self.marks, marks, strict=True))
        why = f"marked {_format_mark(marks[at])} of {self.best} ({shown}); {best.votes} votes"
        others = [mark for i, mark in enumerate(marks) if i != at and mark is not None]
        mark = marks[at]
        # Without a second mark there is no margin.
        if mark is not None and others:
            why += f", margin {_format_mark(mark - max(others))}"
        why = "; ".join([why, *self.left_out])
        return Verdict(value=claim[0] if claim else None, why=why, winner=best.branch, extracted=True)

    def _mark(self, call: Branch | None) -> float | None:
        text = call.text if call is not None and call.done else ""
        # The last number of "8 of 10" is not the mark.
        numbers = _NUMBER.findall(re.sub(rf"(?<!\s)\s*+(?:/|out of|of)\s*+{self.best}\b", "", text))
        mark = float(numbers[-1]) if numbers else -1.0
        return mark if 0.0 <= mark <= self.best else None


def _format_mark(mark: float | None) -> str:
    return "none" if mark is None else f"{mark:g}"


_LETTERS = StructuredOutput(kind="choice", spec=["A", "B"], required=False)
_LETTER = re.compile(r"\b([AB])\b")
_COMPARE = """\
{question}

Answer A:
{a}

Answer B:
{b}

Which of the two answers is more likely right? Answer with one letter, A or B.
"""


class Match(Frozen):
    """Two candidates and the calls that decide between them."""

    first: str
    """The branch with more votes (or the earlier branch); it advances if the calls disagree."""
    second: str | None = None
    """The other branch; without an opponent the first branch advances."""
    calls: tuple[str, ...] = ()
    """The steps of the two calls: the first candidate is A in one and B in the other."""


class Pairwise(OpenVote, ModelMerge):
    """Knockout selection by pairwise comparison, as in best-of-n tournaments with a model as the judge.

    Equal answers are one candidate, so k different answers take k - 1 matches in about log2 k rounds. Candidates are
    seeded by votes, then by the join's order; the first meets the last. Each match takes two calls with the candidates
    swapped, since models favour a position. The second candidate must win both calls, else the first advances. So a
    model that always writes "A", or fails, keeps the majority's answer. The join expands into one round at a time.
    """

    judge: Annotated[CallConfig, Uses("question", "a", "b")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0, form="choice"),
        description="Compares two answers. Its template has `{question}`, `{a}` and `{b}`. `form=choice`: an engine "
        "that can allows nothing but A or B; `form=null`: anything.",
    )
    matches: Annotated[tuple[Match, ...], Free()] = Field(
        default=(), description="The round that has been played; set by the merge itself."
    )
    played: Annotated[int, Free()] = Field(default=0, description="Rounds so far; set by the merge itself.")
    counts: FreeText = Field(
        default="", description="How many votes and answers there were, and who did not vote; set by the merge itself."
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the winner, or the next round as more plan; `why` has the number of candidates."""
        by_name = {branch.name: branch for branch in branches}
        if self.matches:
            left = [self._winner(match, by_name) for match in self.matches]
            why = f"round {self.played}: {len(left)} left"
        else:
            roll = read_roll(branches, task)
            counted = sorted(group_by_answer(roll.ballots), key=lambda group: (-group.votes, group.first.place))
            if not counted:
                return no_vote_verdict(roll)
            left = [group.first.branch.name for group in counted]
            why = "; ".join([f"{len(left)} different answers of {roll.votes} votes", *list_absent(roll)])
        if len(left) == 1:
            claim = read_claim(by_name[left[0]], task)
            reason = f"won all of {self.played} rounds; {self.counts}" if self.played else f"nothing to compare: {why}"
            return Verdict(value=claim[0] if claim else None, why=reason, winner=left[0], extracted=True)
        return Verdict(value=None, why=why, patch=self._round(left, by_name, task, self.counts or why))

    def _round(self, left: Sequence[str], by_name: dict[str, Branch], task: Task, counts: str) -> Plan:
        calls: list[Step] = []
        matches: list[Match] = []
        half = (len(left) + 1) // 2
        for i in range(half):
            first, second = left[i], left[len(left) - 1 - i]
            # With an odd number, the middle candidate has no opponent and advances.
            if first == second:
                matches.append(Match(first=first))
                continue
            pair = (by_name[first], by_name[second])
            names = [unique_name(f"match-{i + 1}{way}", by_name) for way in "ab"]
            form = _LETTERS if self.judge.form == "choice" else self.judge.form
            for name, (a, b) in zip(names, (pair, pair[::-1]), strict=True):
                shown = {"a": self.excerpt(a.line), "b": self.excerpt(b.line)}
                pieces = self.judge.text(_COMPARE, question=task.render(), **shown)
                label = f"{a.name} or {b.name}"
                calls.append(ask_model(task, name, pieces, self.judge, label=label, form=form))
            matches.append(Match(first=first, second=second, calls=tuple(names)))
        update = {"matches": tuple(matches), "played": self.played + 1, "counts": counts}
        played = self.model_copy(update=update)
        options: dict[str, JsonValue] = played.model_dump(mode="json")
        op = Join(merge=Plugin(name="pairwise", options=options), on_failure="any-end")
        needs = (*(call.name for call in calls), *left)
        end = Step(name=unique_name("round", by_name), op=op, needs=needs, label=f"round {self.played + 1}")
        return Plan(steps=(*calls, end), output=end.name)

    @staticmethod
    def _winner(match: Match, by_name: dict[str, Branch]) -> str:
        choices = [_choice(by_name.get(call)) for call in match.calls]
        return match.second if match.second is not None and choices == ["B", "A"] else match.first


def _choice(call: Branch | None) -> str | None:
    """Return the last A or B that stands alone in a model's text."""
    letters = _LETTER.findall(call.text) if call is not None and call.done else []
    return letters[-1] if letters else None
