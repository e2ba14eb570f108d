"""Short policies that order ready steps or choose workers for them."""

from __future__ import annotations

import zlib

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import StepView, View

__all__ = ["BreadthFirst", "CriticalPath", "Fifo", "LeastLoaded", "Random", "RoundRobin", "Waves"]


class Fifo(Policy):
    """First ready, first run. The policy makes the default order explicit, and is the baseline for comparisons."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the same rank for every step: the machine breaks ties by order of arrival."""
        return ()


class BreadthFirst(Policy):
    """Ranks a step by its place among the branches of its join; steps without a join come first.

    With an early stop, a join needs branch k only if the earlier branches have not decided. If a branch decides with
    probability p, the k-th is worth (1 − p)^(k − 1) of the first. When many requests compete for slots, running the
    most valuable branch first gives more answers than running the oldest. Unlike `waves` it leaves no slot empty, so a
    lone request has all its branches at once. It orders only the steps in our queue, so give an engine no more slots
    than it can decode efficiently at once. The price is that a hard request waits while easy ones keep coming.
    """

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the step's place among the needs of a join that reads it (the smallest place if several joins do)."""
        name = step.plan.name
        needs = [join.plan.needs for join in step.consumers if join.kind == "join"]
        return (float(min((names.index(name) for names in needs if name in names), default=-1)),)


class CriticalPath(Policy):
    """List scheduling by highest level first (Hu 1961; Graham 1969: at most 2 − 1/m times the optimum on m slots)."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the negative of the step's height in tokens."""
        return (-step.upward_rank,)


class LeastLoaded(Policy):
    """Chooses the worker with the least outstanding tokens among all workers, or among a sample of them (the power of
    two choices: Mitzenmacher, 2001). Without any policy the machine counts attempts instead."""

    choices: int = Field(
        default=0, ge=0, description="Number of workers to compare, a different sample each time; 0: all."
    )

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker with the least load (the first one on a tie)."""
        workers = view.workers
        if self.choices and len(workers) > self.choices:
            stride = len(workers) // self.choices
            workers = [workers[(view.attempts + i * stride) % len(workers)] for i in range(self.choices)]
        best = min((worker for worker in workers if worker.takes(step)), key=lambda worker: worker.load, default=None)
        return Pin(best.name, f"{best.load} tokens outstanding there") if best is not None else None


class Random(Policy):
    """Random load balancing. The same step and seed always give the same choice."""

    seed: int = Field(default=0, description="Another seed, another choice.")

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker that a hash of the step's id selects; while the worker has no room, draw again."""
        workers = view.workers
        for i in range(4 * len(workers)):
            worker = workers[zlib.crc32(f"{self.seed}/{step.id}/{i}".encode()) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "drawn")
        return None


class RoundRobin(Policy):
    """Round-robin load balancing: workers take turns; workers without room are skipped."""

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker whose turn it is."""
        workers = [worker for worker in view.workers if worker.could_take(step)]
        for i in range(len(workers)):
            worker = workers[(view.attempts + i) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "its turn")
        return None


class Waves(Policy):
    """Keeps unstarted branches in our queue: at most `n` of one join are running, and the next starts only when one of
    them has ended and left the join undecided (the windows of early-stopping self-consistency, arXiv 2401.10480,
    without the wait for the slowest of each window). With `consensus`, branches that never start cost nothing.
    """

    fidelity = Fidelity("formula", paper="2401.10480")

    n: int = Field(default=8, ge=1, description="Number of parallel branches: those of one join in flight.")

    def place(self, step: StepView, view: View) -> Defer | None:
        """Defer a branch while its join has `n` branches in flight."""
        for join in step.consumers:
            if join.kind != "join":
                continue
            if join.going >= self.n:
                return Defer(f"{join.going} branches of {join.plan.name} are in flight", behind=join.id)
        return None
