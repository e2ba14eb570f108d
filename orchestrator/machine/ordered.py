"""Ready steps of the runs that order theirs by the same policies: the first of them by rank, and whose turn it is.

Ranks of different policies measure different things (tokens to go, places in a tree), and a run without such a policy
has none. So ranks are compared only within one order, and a step that goes before its turn trades it with the step
whose turn it was: to others they take their turns by arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from .records import Node, Queued, is_current

__all__ = ["Ordered", "Turn", "order_of"]

Turn = tuple[int, int, Node]
"""When a step may go, in the eyes of those of other orders: its priority, a ticket, and itself."""


def order_of(node: Node, rank: tuple[float, ...]) -> str:
    """Return the name of the order in which a step queues; empty if no policy ranks it."""
    return " ".join(type(policy).__name__ for policy in node.run.rankers) if rank else ""


@dataclass(slots=True, eq=False)
class Ordered:
    """The steps of one lane and one order. Every operation takes O(log n), amortised."""

    heap: list[Queued] = field(default_factory=list[Queued])
    """By priority, rank, arrival."""
    _turns: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """A heap of their turns, each with its owner's ticket, and of some that were traded or are over."""
    _waiting: dict[int, Node] = field(default_factory=dict[int, Node])
    """What stands in the other heap, by ticket."""

    def __iter__(self) -> Iterator[Queued]:
        return iter(self.heap)

    def push(self, entry: Queued) -> None:
        """Queue a step; one that was taken out has kept its turn."""
        _, _, ticket, node = entry
        heapq.heappush(self.heap, entry)
        self._waiting[ticket] = node
        node.turn = node.turn or ticket
        self.note(node)

    def note(self, node: Node) -> None:
        """Take note of the turn of a step that stands here, a new or a traded one."""
        heapq.heappush(self._turns, (node.step.priority, node.turn, node.ticket))

    def first(self) -> Queued | None:
        """Return the step that is to go first, or `None`; steps that are over are dropped on the way."""
        while self.heap and not is_current(self.heap[0]):
            self.pop()
        return self.heap[0] if self.heap else None

    def pop(self) -> None:
        """Take out the first entry."""
        self._waiting.pop(heapq.heappop(self.heap)[2], None)

    def turn(self) -> Turn:
        """Return the earliest turn of the steps here. Only while there is a first."""
        while True:
            priority, turn, ticket = self._turns[0]
            node = self._waiting.get(ticket)
            if node is not None and node.turn == turn and not node.ended:
                return priority, turn, node
            heapq.heappop(self._turns)
