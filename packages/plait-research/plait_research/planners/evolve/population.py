"""Programs of one island, in a grid of different ones; which of two is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Member:
    """A program that was run."""

    program: str
    runs: bool
    """It could be loaded."""
    failing: tuple[int, ...]
    """Public cases that it fails, by number."""
    cases: int
    failure: str = ""
    """The first failure as text."""
    seconds: float | None = None
    """Median time of a pass over the public cases, if it passes them and was timed."""
    mad: float = 0.0
    """Median absolute deviation of that."""
    score: float | None = None
    """What the user's `evaluate` makes of it."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What that is made of."""

    @property
    def share(self) -> float:
        """Share of the public cases that it passes."""
        return 1.0 - len(self.failing) / self.cases if self.cases else float(self.runs)

    @property
    def cell(self) -> tuple[int, tuple[int, ...]]:
        """Class of length (powers of two of characters) and failing cases."""
        return len(self.program).bit_length(), self.failing


def median_and_deviation(times: Sequence[float]) -> tuple[float, float]:
    """Return the median of times and their median absolute deviation.

    >>> median_and_deviation([1.0, 5.0, 2.0])
    (2.0, 1.0)
    """
    middle = median(times)
    return middle, median(abs(seconds - middle) for seconds in times)


def is_better(a: Member, b: Member) -> bool:
    """Return whether a is better than b: it runs, it passes more, it has a higher score, or it is faster by more than
    noise (twice the larger median absolute deviation)."""
    if (a.runs, a.share) != (b.runs, b.share):
        return (a.runs, a.share) > (b.runs, b.share)
    if a.score != b.score:
        return b.score is None or (a.score is not None and a.score > b.score)
    if a.seconds is None or b.seconds is None:
        return a.seconds is not None and b.seconds is None
    return a.seconds < b.seconds - 2 * max(a.mad, b.mad)


class Grid:
    """The programs of an island: one a cell."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, tuple[int, ...]], Member] = {}

    def add(self, member: Member) -> bool:
        """Keep a program if its cell is empty or it is better than what is there; return whether it was kept."""
        known = self.cells.get(member.cell)
        if known is not None and not is_better(member, known):
            return False
        self.cells[member.cell] = member
        return True

    def rank(self) -> list[Member]:
        """Return the programs, the best first. Those that differ by noise alone: the shorter first."""
        members: list[Member] = []
        for member in sorted(self.cells.values(), key=lambda one: (len(one.program), one.program)):
            at = next((i for i, other in enumerate(members) if is_better(member, other)), len(members))
            members.insert(at, member)
        return members
