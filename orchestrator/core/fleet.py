"""Slots and the ready queue: which ready step goes to which worker next.

The queue is a heap whose key (priority, policy's rank, order of arrival) is asked for once, when a step becomes ready;
among free workers the least loaded gets the step unless a policy chose another. Knows nothing of plans or results.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .ir import Kind
from .nodes import Node, Queued, State

_SPARE = 64


@dataclass(slots=True, eq=False)
class Host:
    """A worker as the machine knows it."""

    name: str
    slots: int
    serves: tuple[Kind, ...]
    up: bool = True
    returning: bool = False
    running: int = 0
    """Attempts on it that are not gone."""
    carried: int = 0
    """Attempts on it when its slots were last counted: they may be more than it now has slots for."""

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        return self.slots - self.running if self.up else 0


@dataclass(slots=True, eq=False)
class Fleet:
    """All workers, and the steps that are ready for them."""

    hosts: dict[str, Host] = field(default_factory=dict[str, Host])
    queues: dict[Kind, list[Queued]] = field(default_factory=lambda: {"think": [], "call": []})
    _idle: dict[Kind, list[tuple[int, str, Host]]] = field(default_factory=lambda: {"think": [], "call": []})
    """Heaps of (running, name, host), with stale entries; at least one true entry for each host with a free slot."""
    _expected: dict[Kind, bool] = field(default_factory=lambda: {"think": False, "call": False})
    """Whether a worker serves this kind of step, or will when it is back."""
    _tickets: int = 0

    def up(self, name: str, slots: int, serves: tuple[Kind, ...]) -> None:
        """Enter a worker, bring one back, or change what one offers."""
        host = self.hosts.setdefault(name, Host(name, slots, serves))
        host.slots, host.serves, host.up, host.returning, host.carried = slots, serves, True, False, host.running
        self._offer(host)
        self._see_who_serves()

    def down(self, name: str, returning: bool) -> None:
        """Take a worker out. One that comes back keeps its steps waiting."""
        host = self.hosts.setdefault(name, Host(name, 0, ("think", "call")))
        host.up, host.returning = False, returning
        self._see_who_serves()

    def _see_who_serves(self) -> None:
        for kind in self._expected:
            self._expected[kind] = any(
                kind in host.serves and (host.up or host.returning) for host in self.hosts.values()
            )

    def push(self, node: Node, rank: tuple[float, ...]) -> None:
        """Queue a step that has become ready."""
        step = node.step
        if node.ticket == 0:
            self._tickets = node.ticket = self._tickets + 1
        heapq.heappush(self.queues[step.op.kind], (step.priority, rank, node.ticket, node))

    def put_back(self, entry: Queued) -> None:
        """Queue a step that was taken out, where it stood."""
        heapq.heappush(self.queues[entry[3].step.op.kind], entry)

    def take(self) -> tuple[Queued, Host | None] | None:
        """Take out the first step, among those of every kind, that a worker has room for; or one, with `None`, that no
        worker serves or will serve. Return `None` if there is neither."""
        chosen: Queued | None = None
        room: Host | None = None
        where: list[Queued] = []
        for kind, queue in self.queues.items():
            if not queue:
                continue
            while queue and queue[0][3].state is not State.READY:
                heapq.heappop(queue)
            if not queue or (chosen is not None and chosen < queue[0]):
                continue
            host = self.least_loaded(kind)
            if host is not None or not self._expected[kind]:
                chosen, room, where = queue[0], host, queue
        if chosen is None:
            return None
        heapq.heappop(where)
        return chosen, room

    def least_loaded(self, kind: Kind) -> Host | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        heap = self._idle[kind]
        while heap:
            running, _, host = heap[0]
            if host.running == running and host.up and running < host.slots and kind in host.serves:
                return host
            heapq.heappop(heap)
        return None

    def occupy(self, host: Host) -> None:
        """Take a slot."""
        host.running += 1
        self._offer(host)

    def release(self, host: Host) -> None:
        """Give a slot back."""
        host.running -= 1
        self._offer(host)

    def _offer(self, host: Host) -> None:
        if not host.up or host.running >= host.slots:
            return
        for kind in host.serves:
            heap = self._idle.get(kind)
            if heap is None:
                continue
            heapq.heappush(heap, (host.running, host.name, host))
            if len(heap) > 4 * len(self.hosts) + _SPARE:  # mostly stale by now
                free = [each for each in self.hosts.values() if each.free > 0 and kind in each.serves]
                heap[:] = [(each.running, each.name, each) for each in free]
                heapq.heapify(heap)
