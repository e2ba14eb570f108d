"""Stop rule `esc`: enough votes, if all answers of one window are the same. Counts windows; knows no probabilities."""

from __future__ import annotations

from pydantic import Field

from .._stopping import Poll, StopRule

__all__ = ["ESC"]


class ESC(StopRule):
    """Early-Stopping Self-Consistency (Li et al., arXiv 2401.10480).

    The branches, in the join's order, fall into windows of `window`. When all of one window are done and have the same
    answer (their entropy is 0), the vote ends; it is then over all branches that are done. A branch that failed or has
    no answer keeps its window from being unanimous. Windows are by the join's order, not by who ends first, so that
    short answers have no advantage; with as many slots as a window they run one window after another, as in the paper.
    """

    window: int = Field(default=5, ge=2)
    """Branches in a window; the paper uses 5 and 8."""

    def enough(self, poll: Poll) -> str | None:
        """Return which window is unanimous, once one is."""
        keys = poll.keys()
        for start in range(0, len(keys) - self.window + 1, self.window):
            block = keys[start : start + self.window]
            if block[0] is not None and block.count(block[0]) == self.window:
                return f"branches {start + 1} to {start + self.window} agree"
        return None
