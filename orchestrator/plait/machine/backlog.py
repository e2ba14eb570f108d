"""Order ready steps, and keep a backlog of those that may not start now.

It reads only a step's order and whether the step is still ready.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from ..core.chat import Message
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


T = TypeVar("T")


class Series(Generic[T]):
    """An immutable sequence. The first continuation of a series costs only the new items; a second continuation of the
    same series copies it."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        """Shared with the continuations of this series, which owns the first `_length` items."""
        self._length = len(self._items)

    def append_items(self, more: Iterable[T]) -> Series[T]:
        """Return the series continued by more items."""
        longer: Series[T] = Series()
        shared = self._items
        longer._items = shared if len(shared) == self._length else shared[: self._length]
        longer._items.extend(more)
        longer._length = len(longer._items)
        return longer

    def with_more(self, more: Iterable[T] = ()) -> tuple[T, ...]:
        """Return the items and more as a tuple."""
        # A list is unpacked several times as fast as an iterator.
        items = self._items if len(self._items) == self._length else self._items[: self._length]
        return (*items, *more)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return islice(self._items, self._length)


class TalkHistory(NamedTuple):
    """A conversation up to the end of a turn."""

    messages: Series[Message]
    calls: int
    """Calls of tools in it."""
