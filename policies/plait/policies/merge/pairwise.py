"""Merge `pairwise`: a tournament in which a model chooses the better of two answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.interfaces import Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.sampling import StructuredOutput
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import OpenVote, group_by_answer, list_absent, no_vote_verdict, read_claim, read_roll
from ._model_merge import ModelMerge, unique_name

__all__ = ["Pairwise"]

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
