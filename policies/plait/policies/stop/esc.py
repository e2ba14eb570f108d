"""Stop rule `esc`: end the vote when all answers of one window are the same."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.view import Branch

from .._stopping import Poll, StopRule

__all__ = ["ESC"]


class ESC(StopRule):
    """Early-Stopping Self-Consistency (Li et al., arXiv 2401.10480).

    The branches fall into windows of `window` in the join's order, so short answers have no advantage. When all
    branches of one window are done with the same answer (entropy 0), the vote over all finished branches ends. A branch
    that failed or has no answer keeps its window from being unanimous. With as many slots as a window the windows run
    one after another, as in the paper.
    """

    fidelity = Fidelity("exact", oracles=("esc",), paper="2401.10480")

    window: int = Field(default=5, ge=2, description="Branches in a round: the window; the paper uses 5 and 8.")

    def enough(self, poll: Poll) -> str | None:
        """Return which window is unanimous, once one is."""
        places = lambda: {branch.step: place for place, branch in enumerate(poll.branches)}  # noqa: E731
        agreed = poll.fold(self, lambda: _Windows(self.window, places())).agreed
        if not agreed:
            return None
        start = min(agreed) * self.window
        return f"branches {start + 1} to {start + self.window} agree"


class _Windows:
    """The windows of a vote."""

    def __init__(self, size: int, places: dict[str, int]) -> None:
        self._size, self._places = size, places
        self._counts: Counter[tuple[int, str]] = Counter()
        self.agreed: set[int] = set()
        """Numbers of those all of whose branches have one answer."""

    def ended(self, branch: Branch, key: str | None, votes: int) -> None:
        # A branch without an answer keeps its window from being unanimous.
        if key is None:
            return
        window = self._places[branch.step] // self._size
        self._counts[window, key] += 1
        if self._counts[window, key] == self._size:
            self.agreed.add(window)
