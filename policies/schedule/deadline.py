"""Policy `deadline`: the step whose run has the least time to spare goes first."""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Policy
from plait.core.view import StepView, View

__all__ = ["Deadline"]


class Deadline(Policy):
    """Least slack first: the time left until the run's deadline, less the predicted seconds of the longest way from the
    step to the output (HexGen-Text2SQL, arXiv 2505.05286, over the plan's graph rather than a list of stages).

    The deadline is that of the run's budget (`seconds`), or `seconds` of this policy. It orders the steps of one share
    (`Request.share`); between shares it is fairness that decides. A step that waits gains on later ones, so none waits
    for ever: with ageing a, a step that became ready r seconds earlier goes first if its slack is at most a · r larger.
    A run that can no longer make it goes behind those that can.

    Differs from the paper: ageing; nobody is held up by a step that has no room, since another worker takes the next.
    """

    seconds: float = Field(default=60.0, gt=0)
    """From submission to the deadline of a run whose budget has none."""
    ageing: float = Field(default=0.1, ge=0)
    """Seconds of slack that a second of waiting makes good."""
    late: float = Field(default=3600.0, ge=0)
    """Seconds by which a run is put back that cannot make it any more."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the latest time at which the step should begin. It is the same order as that by slack, since time
        passes for all of them alike; so it need not be asked for again while the step waits."""
        deadline = view.deadline(step.run)
        if deadline is None:
            deadline = view.submitted(step.run) + self.seconds
        start = deadline - self._way(step, view)
        behind = self.late if start < view.now else 0.0
        return (start + behind + self.ageing * view.now,)

    def _way(self, step: StepView, view: View) -> float:
        """Return the predicted seconds from the step's start to the end of its run."""
        paces = [pace for each in view.workers if each.up and (pace := each.pace(max(1, each.running))) is not None]
        if not paces:
            return 0.0
        share = view.expected_tokens(step) / step.max_tokens if step.max_tokens else 1.0
        return step.upward_rank * share * sum(paces) / len(paces)
