"""Slots and the ready queue: which ready step goes to which worker next.

The queue is a heap whose key (priority, policy's rank, order of arrival) is asked for once, when a step becomes ready;
among free workers the least loaded gets the step unless a policy chose another. Knows nothing of plans or results.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .ir import Kind
from .nodes import Node, State


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

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        return self.slots - self.running if self.up else 0


@dataclass(slots=True, eq=False)
class Fleet:
    """All workers, and the steps that are ready for them."""

    hosts: dict[str, Host] = field(default_factory=dict[str, Host])
    queues: dict[Kind, list[tuple[int, tuple[float, ...], int, Node]]] = field(
        default_factory=lambda: {"think": [], "call": []}
    )
    _idle: dict[Kind, list[tuple[int, str, Host]]] = field(default_factory=lambda: {"think": [], "call": []})
    """Heaps of (running, name, host), with stale entries; one true entry for each host that has a free slot."""
    _expected: dict[Kind, bool] = field(default_factory=lambda: {"think": False, "call": False})
    _tickets: int = 0

    def up(self, name: str, slots: int, serves: tuple[Kind, ...]) -> None:
        """Enter a worker, or bring one back."""
        running = self.hosts[name].running if name in self.hosts else 0
        host = self.hosts.setdefault(name, Host(name, slots, serves))
        host.slots, host.serves, host.up, host.returning, host.running = slots, serves, True, False, running
        self._offer(host)
        self._see_who_serves()

    def down(self, name: str, returning: bool) -> None:
        """Take a worker out. One that comes back keeps its steps waiting."""
        host = self.hosts.setdefault(name, Host(name, 0, ("think", "call")))
        host.up, host.returning = False, returning
        self._see_who_serves()

    def expects(self, kind: Kind) -> bool:
        """Whether a worker serves this kind of step, or will when it is back."""
        return self._expected[kind]

    def _see_who_serves(self) -> None:
        for kind in self._expected:
            self._expected[kind] = any(
                kind in host.serves and (host.up or host.returning) for host in self.hosts.values()
            )

    def push(self, node: Node, rank: tuple[float, ...]) -> None:
        """Queue a ready step."""
        self._tickets += 1
        node.rank, node.ticket = rank, self._tickets
        heapq.heappush(self.queues[node.step.op.kind], (node.step.priority, rank, self._tickets, node))

    def peek(self, kind: Kind) -> Node | None:
        """Return the next ready step of a kind without taking it."""
        queue = self.queues[kind]
        while queue:
            _, _, ticket, node = queue[0]
            if node.ticket == ticket and node.state is State.READY:
                return node
            heapq.heappop(queue)
        return None

    def take(self, node: Node) -> None:
        """Take a step out of the queue."""
        node.ticket = 0

    def least_loaded(self, kind: Kind) -> Host | None:
        """Return the worker with a free slot that runs the fewest attempts (by name among equals), or `None`."""
        heap = self._idle[kind]
        while heap:
            running, _, host = heap[0]
            if host.running == running and host.free > 0 and kind in host.serves:
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
        if host.free > 0:
            for kind in host.serves:
                if kind in self._idle:
                    heapq.heappush(self._idle[kind], (host.running, host.name, host))
