"""Policies of a few lines that order ready steps or choose workers for them."""

from __future__ import annotations

import zlib

from pydantic import Field

from plait.core.declarations import Fidelity
from plait.core.interfaces import Defer, Pin, Policy
from plait.core.view import StepView, View

__all__ = ["BreadthFirst", "CriticalPath", "Fifo", "LeastLoaded", "Random", "RoundRobin", "Waves"]


class Fifo(Policy):
    """First ready, first run. As a policy it makes the order explicit, and is the baseline to compare others with."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the same key for every step: the machine breaks ties by order of arrival."""
        return ()


class BreadthFirst(Policy):
    """Ranks a step by its place among the branches of the join that it goes into; steps that go into none come first.

    With an early stop, branch k of a join is wanted only if those before it have not decided: with a chance p that one
    does, the k-th is worth (1 − p)^(k − 1) of the first. While many requests share slots that are all taken, the most
    answers come from the branch that is worth most, not the oldest. Unlike `waves` it leaves no slot empty, so a
    lone request has all its branches at once. It orders only the steps in our queue, so give an engine no more slots
    than it can decode efficiently at once. The price is that a hard request waits while easy ones keep coming.
    """

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the step's place among the needs of a join that reads it, the first if there are several."""
        name = step.plan.name
        needs = [join.plan.needs for join in step.consumers if join.kind == "join"]
        return (float(min((names.index(name) for names in needs if name in names), default=-1)),)


class CriticalPath(Policy):
    """List scheduling by highest level first (Hu 1961; Graham 1969: at most 2 − 1/m times the optimum on m slots)."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return minus the step's height, in tokens."""
        return (-step.upward_rank,)


class LeastLoaded(Policy):
    """Least outstanding tokens, of all workers or, where there are many, of a few (the power of two choices:
    Mitzenmacher, 2001). Without any policy the machine counts attempts instead."""

    choices: int = Field(
        default=0, ge=0, description="Number of workers to compare, a different sample each time; 0: all."
    )

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker with the least load; the first of equals."""
        workers = view.workers
        if self.choices and len(workers) > self.choices:
            stride = len(workers) // self.choices
            workers = [workers[(view.attempts + i * stride) % len(workers)] for i in range(self.choices)]
        best = min((worker for worker in workers if worker.takes(step)), key=lambda worker: worker.load, default=None)
        return Pin(best.name, f"{best.load} tokens outstanding there") if best is not None else None


class Random(Policy):
    """What a balancer does that spreads requests blindly. The same step and seed always give the same choice."""

    seed: int = Field(default=0, description="Another seed, another choice.")

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker that a hash of the step's id gives; as long as that one has no room, draw again."""
        workers = view.workers
        for i in range(4 * len(workers)):
            worker = workers[zlib.crc32(f"{self.seed}/{step.id}/{i}".encode()) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "drawn")
        return None


class RoundRobin(Policy):
    """What most balancers do first: workers in turn, those without room passed over."""

    def place(self, step: StepView, view: View) -> Pin | None:
        """Return the worker whose turn it is."""
        workers = [worker for worker in view.workers if worker.could_take(step)]
        for i in range(len(workers)):
            worker = workers[(view.attempts + i) % len(workers)]
            if worker.takes(step):
                return Pin(worker.name, "its turn")
        return None


class Waves(Policy):
    """Keeps unstarted branches in our queue: at most `n` of one join are running, and the next starts only when
    one of them has ended and left the join undecided (the windows of early-stopping self-consistency, arXiv 2401.10480,
    without the wait for the slowest of each window). Together with `consensus` what is never started costs nothing.
    """

    fidelity = Fidelity("exact", paper="2401.10480")

    n: int = Field(default=8, ge=1, description="Number of parallel branches: those of one join in flight.")

    def place(self, step: StepView, view: View) -> Defer | None:
        """Hold a branch of a join that has its number in flight."""
        for join in step.consumers:
            if join.kind != "join":
                continue
            if join.going >= self.n:
                return Defer(f"{join.going} branches of {join.plan.name} are in flight", behind=join.id)
        return None
