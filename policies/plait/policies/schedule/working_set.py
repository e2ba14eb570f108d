"""Policy `working-set`: no more programs are active on an engine than its prefix cache can hold."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import ProgramView, StepView, View, WorkerView

__all__ = ["WorkingSet"]

_OVERDUE = 3.0
"""Multiples of the usual time of its tool calls after which an idle program no longer counts as about to return."""


class WorkingSet(Policy):
    """Admits programs (agents, sessions) while the contexts of all fit an engine's prefix cache together, so that no
    turn reads its context again because another's has displaced it.

    A turn starts if the contexts of the programs that came before its own fit the cache together with its own, now and
    as they grow. So the programs that came last are paused, at their tool calls, and those that came first end and
    make room. Rules, and their sources:

    - Schedule programs and not calls; pause at tool calls: ThunderAgent (arXiv 2602.13692).
    - The engine never idles for it: while an engine runs nothing, the first program that waits goes on. A long tool
      call thus does not hold the engine's cache against work that could be done (the trade of Continuum, arXiv
      2511.02230, without its clock).
    - Arrival decides, and no program is overtaken for its size: smallest first makes large contexts wait.
    - Between fairness groups the one that was served least goes first (Autellix, arXiv 2502.13965).

    Differs from ThunderAgent: a context counts with its growth, which is learned from the turns so far and from what
    the plan still has ahead; a paused program moves to any engine with room.
    """

    fidelity = Fidelity("variant", "admission by expected growth, in order of arrival", paper="2602.13692")

    read: float = Field(
        default=600.0,
        ge=0,
        description="Prompt tokens that an engine reads in the time that it decodes one token of each sequence.",
    )
    fill: float = Field(default=0.85, gt=0, description="Share of an engine's cache that the active programs may take.")


    def admit(self, step: StepView, worker: WorkerView, view: View) -> Pin | Defer | None:
        """Return nothing if the step's program fits its worker, else another worker with room, or a hold."""
        own = view.program(step, worker.name)
        if self._fits(own, worker, view):
            return None
        for other in sorted(view.workers, key=lambda each: (each.running, each.name)):
            if other is not worker and other.takes(step) and self._fits(view.program(step, other.name), other, view):
                return Pin(other.name, f"{other.name} has room for its program")
        size = own.tokens + own.growth
        ahead = [each for each in view.programs(worker.name) if each.arrival < own.arrival]
        # An engine that decodes less than this many sequences gains more by one more than reading a context again costs.
        if worker.running + sum(_returns(each, view.now) for each in ahead) < self.read * view.expected_tokens(step) / size:
            return None
        until = view.now + own.gap_s if own.gap_s else None
        return Defer(f"waits for room in the cache of {worker.name}: its program needs {size} tokens", until=until)

    def _fits(self, own: ProgramView, worker: WorkerView, view: View) -> bool:
        before = [each for each in view.programs(worker.name) if each.arrival < own.arrival]
        cache = worker.cache_tokens
        return cache is None or not before or peak_tokens([*before, own]) <= self.fill * cache


def peak_tokens(programs: Sequence[ProgramView]) -> int:
    """Return the most tokens that programs will hold together if all grow alike and each leaves at its full size."""
    peak = tokens = 0
    for count, program in enumerate(sorted(programs, key=lambda each: -each.growth), 1):
        tokens += program.tokens
        peak = max(peak, tokens + count * program.growth)
    return peak


def _returns(program: ProgramView, now: float) -> float:
    """Return the chance that an idle program sends its next model call within the time of one."""
    if program.running or not program.calls or not program.gap_s or now - program.idle_since > _OVERDUE * program.gap_s:
        return 0.0
    return min(1.0, program.turn_s / program.gap_s)
