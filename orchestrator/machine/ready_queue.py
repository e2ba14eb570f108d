"""Slots and the ready queue: which ready step goes to which worker next.

A queue is a heap whose key (priority, policy's rank, order of arrival) is asked for once, when a step becomes ready.
There is one for each lane: a kind of step, and the model if one is named; and one more for each set of policies that
order steps, so that ranks are compared only where they mean the same. Between those, the turn goes by arrival. Among
free workers the least loaded gets the step unless a policy chose another. Knows nothing of plans or results.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..core.plan import Kind
from ..core.states import State
from .ordered import Ordered, Turn, order_of
from .records import Node, Queued, WorkerState, lane_of

_SPARE = 64


class _Choice(NamedTuple):
    """The first of the steps of one order that a worker has room for, and the turn that it takes."""

    entry: Queued
    host: WorkerState | None
    queue: Ordered
    turn: Turn
    whose: Ordered
    """Where the step stands whose turn it is."""

    def with_lane(self, other: _Choice) -> _Choice:
        """Return the better step of two lanes, and the earlier turn."""
        first = self if self.entry < other.entry else other
        due = self if self.turn[:2] < other.turn[:2] else other
        return _Choice(first.entry, first.host, first.queue, due.turn, due.whose)

    def trade(self) -> None:
        """Take the step out, on that turn."""
        self.queue.pop()
        node, owner = self.entry[3], self.turn[2]
        if owner is not node:
            node.turn, owner.turn = owner.turn, node.turn
            self.whose.note(owner)


@dataclass(slots=True, eq=False)
class Fleet:
    """All workers, and the steps that are ready for them."""

    workers: dict[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    queues: dict[str, list[Queued]] = field(default_factory=lambda: {"think": [], "call": []})
    """By lane: the steps that no policy ranks."""
    ordered: dict[str, dict[str, Ordered]] = field(default_factory=dict[str, dict[str, Ordered]])
    """By order, then by lane: those that policies rank. An order of which nothing waits is not there."""
    _idle: dict[str, list[tuple[int, str, WorkerState]]] = field(default_factory=lambda: {"think": [], "call": []})
    """Heaps of (running, name, host), with stale entries; at least one true entry for each host with a free slot."""
    _expected: dict[str, bool] = field(default_factory=lambda: {"think": False, "call": False})
    """Whether a worker serves this lane, or will when it is back."""
    serving: dict[str, int] = field(default_factory=dict[str, int])
    """How many workers that are there serve each lane."""
    _tickets: int = 0

    def up(
        self,
        name: str,
        slots: int,
        serves: tuple[Kind, ...],
        models: tuple[str, ...] = (),
        cache_tokens: int | None = None,
        block: int | None = None,
    ) -> None:
        """Enter a worker, bring one back, or change what one offers."""
        host = self.workers.setdefault(name, WorkerState(name, slots, serves))
        host.slots, host.serves, host.up, host.returning, host.carried = slots, serves, True, False, host.running
        host.models, host.cache_tokens, host.block = models, cache_tokens, block
        host.see_lanes(self.queues)
        self._offer(host)
        self._see_who_serves()

    def down(self, name: str, returning: bool) -> None:
        """Take a worker out. One that comes back keeps its steps waiting."""
        host = self.workers.setdefault(name, WorkerState(name, 0, ("think", "call")))
        host.see_lanes(self.queues)
        host.up, host.returning = False, returning
        self._see_who_serves()

    def _see_who_serves(self) -> None:
        for lane in self._expected:
            self._expected[lane] = self._is_expected(lane)
            self.serving[lane] = sum(host.up and lane in host.lanes for host in self.workers.values())

    def _is_expected(self, lane: str) -> bool:
        return any((host.up or host.returning) and lane in host.lanes for host in self.workers.values())

    def _open(self, lane: str) -> None:
        """Make a queue for a lane that no step has been on yet."""
        self.queues[lane], self._expected[lane] = [], False
        for host in self.workers.values():
            host.see_lanes(self.queues)
        self._see_who_serves()
        free = [(each.running, each.name, each) for each in self.workers.values() if each.free > 0]
        self._idle[lane] = [each for each in free if lane in each[2].lanes]
        heapq.heapify(self._idle[lane])

    def push(self, node: Node, rank: tuple[float, ...]) -> None:
        """Queue a step that has become ready."""
        step = node.step
        if node.ticket == 0:
            self._tickets = node.ticket = self._tickets + 1
        lane = lane_of(step)
        if lane not in self.queues:
            self._open(lane)
        self.put_back((step.priority, rank, node.ticket, node))

    def put_back(self, entry: Queued) -> None:
        """Queue a step that was taken out, where it stood."""
        _, rank, _, node = entry
        lane = lane_of(node.step)
        if rank:
            self.ordered.setdefault(order_of(node, rank), {}).setdefault(lane, Ordered()).push(entry)
        else:
            heapq.heappush(self.queues[lane], entry)

    def waiting(self) -> Iterator[tuple[str, Iterable[Queued]]]:
        """Yield lanes with what stands in a queue of theirs, entries of steps that are over included."""
        yield from self.queues.items()
        for lanes in self.ordered.values():
            yield from lanes.items()

    def take(self) -> tuple[Queued, WorkerState | None] | None:
        """Take out the first step, among those of every lane, that a worker has room for; or one, with `None`, that no
        worker serves or will serve. Return `None` if there is neither."""
        chosen, room, where = self._unranked()
        due = None if chosen is None else (chosen[0], chosen[2])
        choice: _Choice | None = None
        for order in list(self.ordered):
            found = self._of_order(order)
            if found is not None and (due is None or found.turn[:2] < due):
                due, choice = found.turn[:2], found
        if choice is not None:
            choice.trade()
            return choice.entry, choice.host
        if chosen is None:
            return None
        heapq.heappop(where)
        return chosen, room

    def _of_order(self, order: str) -> _Choice | None:
        """Return what `take` may take out among the steps of one order."""
        lanes = self.ordered[order]
        found: _Choice | None = None
        for lane, queue in list(lanes.items()):
            entry = queue.first()
            if entry is None:
                del lanes[lane]
                continue
            host = self.least_loaded(lane)
            if host is None and self._expected[lane]:
                continue
            here = _Choice(entry, host, queue, queue.turn(), queue)
            found = here if found is None else found.with_lane(here)
        if not lanes:
            del self.ordered[order]
        return found

    def _unranked(self) -> tuple[Queued | None, WorkerState | None, list[Queued]]:
        """Return what `take` may take out among the steps that no policy ranks: the entry, a worker, the queue."""
        chosen: Queued | None = None
        room: WorkerState | None = None
        where: list[Queued] = []
        for lane, queue in self.queues.items():
            if not queue:
                continue
            while queue and queue[0][3].state is not State.READY:
                heapq.heappop(queue)
            if not queue or (chosen is not None and chosen < queue[0]):
                continue
            host = self.least_loaded(lane)
            if host is not None or not self._expected[lane]:
                chosen, room, where = queue[0], host, queue
        return chosen, room, where

    def least_loaded(self, lane: str) -> WorkerState | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        heap = self._idle[lane]
        while heap:
            running, _, host = heap[0]
            if host.running == running and host.up and running < host.slots and lane in host.lanes:
                return host
            heapq.heappop(heap)
        return None

    def another(self, lane: str, beside: WorkerState) -> WorkerState | None:
        """Return the worker other than one with a free slot that runs the fewest attempts, or `None`."""
        free = (each for each in self.workers.values() if each is not beside and each.free > 0 and lane in each.lanes)
        return min(free, key=lambda each: (each.running, each.name), default=None)

    def expects(self, lane: str) -> bool:
        """Whether a worker serves a lane, or will when it is back."""
        return self._expected[lane]

    def models(self) -> list[str]:
        """Return the names that workers there are give their models."""
        return sorted({name for host in self.workers.values() if host.up or host.returning for name in host.models})

    def occupy(self, host: WorkerState) -> None:
        """Take a slot."""
        host.running += 1
        self._offer(host)

    def release(self, host: WorkerState) -> None:
        """Give a slot back."""
        host.running -= 1
        self._offer(host)

    def _offer(self, host: WorkerState) -> None:
        if not host.up or host.running >= host.slots:
            return
        for lane in host.lanes:
            heap = self._idle[lane]
            heapq.heappush(heap, (host.running, host.name, host))
            if len(heap) > 4 * len(self.workers) + _SPARE:  # mostly stale by now
                free = [each for each in self.workers.values() if each.free > 0 and lane in each.lanes]
                heap[:] = [(each.running, each.name, each) for each in free]
                heapq.heapify(heap)
