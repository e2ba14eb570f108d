"""Which of several programs is chosen, from what they returned and what tests want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Evidence", "Rule", "chosen"]

Rule = Literal["votes", "agreement", "majority"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for one program."""

    votes: float
    """Weight of the tests that it passes."""
    cluster: int
    """Samples whose programs behave like it, itself included."""
    length: int
    """Characters of its text."""


def chosen(evidence: Sequence[Evidence], rule: Rule = "votes") -> int:
    """Return the place of the program that wins.

    `votes`: most tests passed, ties by cluster, then the shorter. `agreement`: cluster times tests (CodeT, arXiv
    2207.10397). `majority`: the largest cluster. Which is best depends on the world: where wrong programs share a few
    bugs votes win, where every wrong program is wrong in its own way agreement does (`python -m studies code`).
    """

    def key(i: int) -> tuple[float, float, int, int]:
        each = evidence[i]
        first = {"votes": each.votes, "agreement": each.votes * each.cluster, "majority": float(each.cluster)}[rule]
        second = each.cluster if rule == "votes" else each.votes
        return (-first, -second, each.length, i)

    return min(range(len(evidence)), key=key)
