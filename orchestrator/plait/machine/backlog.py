"""Order ready steps, and keep a backlog of those that may not start now.

It reads only a step's order and whether the step is still ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..core.states import READY, State


class OrderedPlace(Protocol):
    """What orders a step among those that are ready."""

    priority: int
    rank: tuple[float, ...]
    ticket: int


class QueuedStep(Hashable, Protocol):
    """A step as queues see it."""

    @property
    def state(self) -> State: ...
    @property
    def place(self) -> OrderedPlace: ...


R = TypeVar("R", bound=QueuedStep)
Queued = tuple[int, tuple[float, ...], int, R]
"""A ready step in a heap: its priority, rank, ticket, itself."""


def queued(node: R) -> Queued[R]:
    """Return a step's entry in a heap of ready steps."""
    place = node.place
    return place.priority, place.rank, place.ticket, node


class Backlog(Generic[R]):
    """Ready steps that may not start now, by key; those of one key in order of priority, rank, arrival.

    When something has changed, the first step of a key is checked again, and the next one only if that one did not
    stay blocked. A limit that blocks thousands of steps thus costs one or two checks per attempt.
    """

    __slots__ = ("heaps",)
    if not TYPE_CHECKING:  # an alias, `Backlog[Node]`, takes three times as long to make an object

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def __init__(self) -> None:
        self.heaps: dict[str, list[Queued[R]]] = {}

    def put(self, key: str, node: R) -> None:
        """Add a step."""
        heapq.heappush(self.heaps.setdefault(key, []), queued(node))

    def take(self, key: str) -> R | None:
        """Take out the first step of a key that is still ready, or return `None`."""
        # Steps that ended while they waited are dropped here: to find them in the heap at their end would be a search.
        heap = self.heaps.get(key, ())
        while heap:
            node = heapq.heappop(heap)[3]
            if not heap:
                del self.heaps[key]
            if node.state is READY:
                return node
        return None

    def first(self) -> R | None:
        """Take out the first step of all keys that is still ready, or return `None`."""
        ready = [entry for heap in self.heaps.values() for entry in heap if entry[3].state is READY]
        if not ready:
            self.heaps.clear()
            return None
        # A scan of all keys is cheap enough: `first` is called only when nothing else of a run moves.
        first = min(ready)
        for key, heap in list(self.heaps.items()):
            if first in heap:
                heap.remove(first)
                heapq.heapify(heap)
                if not heap:
                    del self.heaps[key]
        return first[3]

    def nodes(self) -> list[R]:
        """Return the steps that are still ready."""
        return [entry[3] for heap in self.heaps.values() for entry in heap if entry[3].state is READY]
