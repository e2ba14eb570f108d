"""Stop rule `esc`: end the vote when all answers of one window are the same."""

from __future__ import annotations

from pydantic import Field

from .._stopping import Poll, StopRule

__all__ = ["ESC"]


class ESC(StopRule):
    """Early-Stopping Self-Consistency (Li et al., arXiv 2401.10480).

    The branches fall into windows of `window` in the join's order, so short answers have no advantage. When all
    branches of one window are done with the same answer (entropy 0), the vote over all finished branches ends. A branch
    that failed or has no answer keeps its window from being unanimous. With as many slots as a window the windows run
    one after another, as in the paper.
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
