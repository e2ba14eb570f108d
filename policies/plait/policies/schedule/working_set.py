"""Policy `working-set`: no more programs are active on an engine than its prefix cache can hold."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import ProgramView, StepView, View, WorkerView

__all__ = ["WorkingSet"]

_CACHE_SHARE = 0.85
"""Share of a cache that the active programs may fill; the rest holds the contexts of programs that just ended."""
_READ_RATIO = 150.0
"""Prompt tokens that a worker reads in the time of decoding one token of each sequence."""
_OVERDUE = 5.0
"""A program no longer counts when its tool call has taken this multiple of the usual time."""


class WorkingSet(Policy):
    """Admits programs (agents, sessions) only while all their contexts fit an engine's prefix cache together. Otherwise
    each turn would prefill its whole context again, because the turns of other programs have evicted it.

    A turn starts if its program's contexts and the contexts of earlier programs fit the cache together, now and as they
    all grow. So the latest programs pause at their tool calls and resume when earlier programs have ended. A program
    that fits no cache runs when it is the first. Rules and their sources:

    - Schedule programs, not calls, and pause them at tool calls: ThunderAgent (arXiv 2602.13692).
    - A context in a tool call is kept only while that is cheaper than reading it again: Continuum (arXiv 2511.02230).
      Here no turn waits if an engine prefills its whole cache in the time of a tool call (`prefill_rate`; turns do not
      count, since they get longer where caches thrash), or while the engine has too few calls, including calls about
      to return from tools.
    - Order of arrival, most recently paused first: ThunderAgent's router resumes the most recent, since its context is
      the likeliest to be cached. Pausing the last to arrive gives the same order, and no program is overtaken for ever.
    - The fairness group that was served least goes first: Autellix (arXiv 2502.13965).

    Differs from ThunderAgent: a context counts with its growth, which is learned from earlier turns and programs and
    from the rest of the plan; a paused program may resume on another engine that has no programs.
    """

    fidelity = Fidelity("variant", "admission by expected growth, in order of arrival", paper="2602.13692")

    prefill_rate: float = Field(default=14_000.0, gt=0, description="Prompt tokens a second that a worker reads.")

    def admit(self, step: StepView, worker: WorkerView, view: View) -> Pin | Defer | None:
        """Return `None` if the step's program fits its worker, else another worker with room, or a hold."""
        own = view.program(step, worker.name)
        if self._fits(own, worker, view):
            return None
        for other in sorted(view.workers, key=lambda other: (other.running, other.name)):
            # A program moves only to an engine without programs, since the move costs another prefill of its context.
            idle = step.home is None or not any(guest.running or guest.calls for guest in view.programs(other.name))
            if (
                other is not worker
                and idle
                and other.takes(step)
                and self._fits(view.program(step, other.name), other, view)
            ):
                return Pin(other.name, f"{other.name} has room for its program")
        if own.gap_s and (worker.cache_tokens or 0) < self.prefill_rate * own.gap_s:
            return None
        size = max(1, own.tokens + own.growth)
        load = worker.running + sum(map(_return_chance, self._ahead(own, worker, view)))
        # With few calls, decoding one more sequence gains more than another prefill costs.
        written = [peer.tokens for peer in view.peers(step)]
        if written and load < _READ_RATIO * sum(written) / len(written) / size:
            return None
        until = view.now + own.gap_s if own.gap_s else None
        return Defer(f"waits for room in the cache of {worker.name}: its program needs {size} tokens", until=until)

    def _ahead(self, own: ProgramView, worker: WorkerView, view: View) -> list[ProgramView]:
        """Return the earlier programs on a worker, without programs whose tool calls are overdue."""
        programs = view.programs(worker.name)
        return [other for other in programs if other.arrival < own.arrival and not _is_overdue(other, view.now)]

    def _fits(self, own: ProgramView, worker: WorkerView, view: View) -> bool:
        ahead, cache = self._ahead(own, worker, view), worker.cache_tokens
        return cache is None or not ahead or peak_tokens([*ahead, own]) <= _CACHE_SHARE * cache


def peak_tokens(programs: Sequence[ProgramView]) -> int:
    """Return the maximum total tokens of programs that all grow at the same rate and end at their full size."""
    peak = tokens = 0
    for count, program in enumerate(sorted(programs, key=lambda program: -program.growth), 1):
        tokens += program.tokens
        peak = max(peak, tokens + count * program.growth)
    return peak


def _is_overdue(program: ProgramView, now: float) -> bool:
    """Return whether a program's tool calls take much longer than usual, so that its context will not be kept."""
    idle = bool(program.calls) and not program.running and program.gap_s > 0
    return idle and now - program.idle_since > _OVERDUE * program.gap_s


def _return_chance(program: ProgramView) -> float:
    """Return the probability that a program's next model call comes within one turn's time; 0 if a call is running."""
    if program.running or not program.calls or not program.gap_s:
        return 0.0
    return min(1.0, program.turn_s / program.gap_s)
