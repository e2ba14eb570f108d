"""Policy `deadline`: run the step with the least slack before its run's deadline first."""

from __future__ import annotations

from statistics import fmean

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Policy
from plait.core.lengths import SHARE
from plait.core.plan import template
from plait.core.view import StepView, View

__all__ = ["Deadline"]

_AHEAD = 200
"""Maximum number of steps on the paths to the output that are computed one by one."""


class Deadline(Policy):
    """Least slack first. Slack is the time until the run's deadline minus the predicted seconds of the longest path
    from the step to the output (HexGen-Text2SQL, arXiv 2505.05286, on the plan's graph instead of a list of stages).

    The deadline is that of the run's budget (`seconds`), or `seconds` of this policy. It orders the steps of one
    fairness group (`Request.fairness_group`); fairness decides between groups. Waiting steps gain priority, so none
    starves: with ageing a, a step that became ready r seconds earlier goes first if its slack is at most a · r larger.

    A run that can no longer meet its deadline goes behind the runs that can: its path would take too long even on the
    fastest engine without other load. The usual pace would misjudge many runs, since engines get faster as their
    batches get smaller.

    Differs from the paper: steps age, and a step without a free worker does not block the next step.
    """

    fidelity = Fidelity("variant", "slack over a graph, not a list of stages", paper="2505.05286")

    seconds: float = Field(
        default=60.0, gt=0, description="From submission to the deadline of a run whose budget has none."
    )
    ageing: float = Field(default=0.1, ge=0, description="Seconds of slack that a second of waiting makes good.")
    late: float = Field(
        default=3600.0, ge=0, description="Seconds by which a run is put back that cannot make it any more."
    )
    quantile: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Which quantile counts: of the lengths of like steps, for what those on the way are expected to "
        "generate.",
    )

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the latest time at which the step should begin. It gives the same order as slack, since time passes
        equally for all steps; so the rank stays valid while the step waits."""
        deadline = view.deadline(step.run)
        if deadline is None:
            deadline = view.submitted(step.run) + self.seconds
        tokens = self.tokens_ahead(step, view)
        paces = [
            (pace, worker.pace(1) or pace)
            for worker in view.workers
            if worker.could_take(step) and (pace := worker.pace(max(1, worker.running))) is not None
        ]
        usual = fmean(pace for pace, _ in paces) if paces else 0.0
        alone = min((pace for _, pace in paces), default=0.0)
        behind = self.late if view.now + tokens * alone > deadline else 0.0
        return (deadline - tokens * usual + behind + self.ageing * view.now,)

    def tokens_ahead(self, step: StepView, view: View) -> float:
        """Return the expected tokens of the longest path from a step's start to the end of its run."""
        return _Way(view, self.quantile).tokens(step)


class _Way:
    """The longest paths to a run's output, in tokens that the steps are expected to generate."""

    def __init__(self, view: View, quantile: float) -> None:
        self._view, self._quantile = view, quantile
        self._ways: dict[str, float] = {}
        self._lengths: dict[tuple[str, int, bool], float] = {}

    def tokens(self, step: StepView) -> float:
        """Return the tokens of the longest path from a step's start to the end of its run."""
        known = self._ways.get(step.id)
        if known is not None:
            return known
        if len(self._ways) >= _AHEAD:
            return SHARE * step.upward_rank
        self._ways[step.id] = 0.0
        after = step.consumers or (step.owner.consumers if step.owner is not None else ())
        way = self._ways[step.id] = self._own(step) + max(map(self.tokens, after), default=0.0)
        return way

    def _own(self, step: StepView) -> float:
        if step.kind != "think":
            return 0.0
        like = template(step.id), step.max_tokens, step.after is None
        if like not in self._lengths:
            self._lengths[like] = self._view.expected_tokens(step, self._quantile)
        return self._lengths[like]
