"""Ways to vote that need answers and lengths alone, so that they run on anybody's samples; settings by family, and
which setting of a family is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .samples import Question, Way, vote
from .statistics import Estimate, difference, saving, verdict

__all__ = ["COLUMNS", "FULL", "HALVES", "LOSE", "WAYS", "Chosen", "Votes", "chosen", "families", "in_sequence",
           "voted"]  # fmt: skip

LOSE = 0.01
"""Of the right answers, that a setting may cost on the questions that it is chosen on."""
HALVES = (
    "Tokens saved and right answers gained or lost on the questions at odd places, at the setting that saved most on "
    f"those at even places for at most {LOSE * 100:.0f} point there. *Kept*: the interval of the change, which is "
    "exact, does not end below −1 point. Where no answer changed, up to 3/n may still be lost (the rule of three)."
)
COLUMNS = ("rule", "setting", "samples that ended", "tokens saved", "in sequence; full vote", "change", "kept")
Votes = Mapping[str, Mapping[str, Sequence[int]]]
"""By way: `right` (0 or 1), `tokens` and `votes` by question."""


class Chosen(NamedTuple):
    """A setting, chosen on the one half of the questions, and what it came to on the other."""

    key: str
    saved: Estimate
    change: Estimate
    ended: float
    """Samples that ended, in the mean."""
    sequence: float
    """Tokens in sequence, in the mean: the longest sample of each wave, all waves together."""
    full_sequence: float
    """The same of the full vote: its longest sample."""

    def cells(self, family: str) -> tuple[str, ...]:
        """Return the cells under `COLUMNS`."""
        kept = verdict(self.change, -LOSE)
        sequence = f"{self.sequence:,.0f}; {self.full_sequence:,.0f}"
        figures = (f"{self.ended:.1f}", self.saved.percent(), sequence, self.change.points())
        return (family, f"`{self.key}`", *figures, kept)


FULL = Way("majority", "majority of all")


def _stop(family: str, key: str, *policies: str, wave: int = 4) -> Way:
    return Way(key, family, (*policies, f"waves:n={wave}"))


WAYS: tuple[Way, ...] = (
    FULL,
    Way("lossless", "lossless stop", ("waves:n=1",), early=True),
    *(_stop("Adaptive-Consistency", f"ac {each:g}", f"adaptive-consistency:confidence={each:g}", wave=1)
      for each in (0.8, 0.9, 0.95, 0.99)),
    *(_stop("ESC", f"esc {each}", f"esc:window={each}", wave=each) for each in (3, 5, 8)),
    *(_stop("semantic entropy", f"entropy {each:g}", f"semantic-entropy:entropy={each:g}", wave=4)
      for each in (0.2, 0.4, 0.8)),
    _stop("semantic entropy, secretary", "secretary 8", "semantic-entropy:rule=secretary", wave=8),
    *(_stop("saturation", f"saturation {each:g}", f"saturation:epsilon={each:g}") for each in (0.003, 0.01, 0.03)),
    *(_stop("First-Finish", f"first {each}", f"first-finish:votes={each}", wave=1) for each in (1, 2, 3, 5)),
    *(_stop("SPRT", f"sprt {each:g}", f"sprt:share={each:g}", wave=1) for each in (0.7, 0.8, 0.9)),
    *(_stop("lossless stop or futility", f"futility {each:g}", "consensus", f"futility:chance={each:g}", wave=1)
      for each in (0.02, 0.1)),
)  # fmt: skip
"""The order of a family's settings is from cheap to dear only by chance: one is chosen by what it does."""


def families() -> dict[str, list[Way]]:
    """Return the ways by family, without the full vote."""
    found: dict[str, list[Way]] = {}
    for way in WAYS[1:]:
        found.setdefault(way.family, []).append(way)
    return found


def voted(way: Way, questions: Sequence[Question]) -> dict[str, list[int]]:
    """Run one way over questions; what it came to, by question."""
    rows = [vote(way, question) for question in questions]
    return {
        "right": [int(row.right) for row in rows],
        "tokens": [row.tokens for row in rows],
        "votes": [row.votes for row in rows],
    }


def in_sequence(way: Way, question: Question, ended: int) -> int:
    """Return the tokens on the longest chain of a vote whose first `ended` samples ended: waves follow one another,
    and each takes as long as its longest sample. The full vote is one wave."""
    size = next((int(each.removeprefix("waves:n=")) for each in way.policies if each.startswith("waves:n=")), 0)
    tokens = question.tokens[: ended if size else None]
    step = size or len(tokens)
    return sum(max(tokens[at : at + step]) for at in range(0, len(tokens), step))


def chosen(votes: Votes, questions: Sequence[Question]) -> Iterator[tuple[str, Chosen]]:
    """Yield for each family the setting that saves most on the even questions at `LOSE` at most (the one that costs
    least there where none keeps to it), and what it comes to on the odd ones."""
    right, tokens = (np.array(votes[FULL.key][name], dtype=np.float64) for name in ("right", "tokens"))
    for family, ways in families().items():
        best, best_rank = ways[0], (-1.0, -1.0)
        for way in ways:
            row = votes[way.key]
            lost = float(np.mean(right[::2] - np.array(row["right"])[::2]))
            saved = 1.0 - float(np.sum(np.array(row["tokens"])[::2]) / np.sum(tokens[::2]))
            rank = (1.0, saved) if lost <= LOSE else (0.0, -lost)
            if rank > best_rank:
                best, best_rank = way, rank
        ended = list(zip(questions[1::2], votes[best.key]["votes"][1::2], strict=True))
        row = {name: np.array(votes[best.key][name], dtype=np.float64)[1::2] for name in ("right", "tokens", "votes")}
        yield (
            family,
            Chosen(
                best.key,
                saving(row["tokens"], tokens[1::2]),
                difference(row["right"], right[1::2]),
                float(row["votes"].mean()),
                float(np.mean([in_sequence(best, question, count) for question, count in ended])),
                float(np.mean([max(question.tokens) for question, _ in ended])),
            ),
        )
