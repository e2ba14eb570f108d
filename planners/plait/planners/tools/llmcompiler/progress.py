"""How far a plan is that may change while it runs."""

from __future__ import annotations

from pydantic import JsonValue

from plait.core.ops import Join, Plugin
from plait.core.plan import Step
from plait.core.values import Frozen

NOTHING = Join(merge=Plugin(name="constant", options={"value": ""}), on_failure="any-end")
MAX_REVISIONS = 20


class Progress(Frozen):
    """A plan that runs: the state of a step `look`, and of the step `revise` that follows it."""

    round: int
    count: int
    """Number of the look, from 1."""
    open: tuple[str, ...]
    """Tasks without an observation that the model has read."""
    tasks: tuple[dict[str, JsonValue], ...]
    """All tasks so far, as the scratchpad's actions."""
    told: tuple[str, ...] | None = None
    """Names of the tools of a narrowed brief."""

    @property
    def numbers(self) -> list[int]:
        """Numbers of the tasks that a new task can refer to."""
        return [int(name) for task in self.tasks if (name := str(task["branch"])).isdecimal()]

    def look(self) -> list[Step]:
        """Return the join that waits for the next observation, if there may be one."""
        if (len(self.open) < 2 and self.count == 1) or not self.open or self.count > MAX_REVISIONS:
            return []
        op = NOTHING.model_copy(update={"on_failure": "quorum", "quorum": 1})
        state = self.model_dump(mode="json")
        return [Step(name=f"look-{self.count}", op=op, needs=self.open, expands=True, role="look", state=state)]
