"""Sequences that share their beginnings: what a conversation has so far, kept once for all its turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from ..core.chat import Message

T = TypeVar("T")


class Series(Generic[T]):
    """An immutable sequence. Going on from one costs what is new, where nothing else went on from it before; a second
    way from the same one copies."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        """Shared with those that go on from this one: the first `_length` are its own."""
        self._length = len(self._items)

    def then(self, more: Iterable[T]) -> Series[T]:
        """Return the series that goes on with more."""
        longer: Series[T] = Series()
        shared = self._items
        longer._items = shared if len(shared) == self._length else shared[: self._length]
        longer._items.extend(more)
        longer._length = len(longer._items)
        return longer

    def with_more(self, more: Iterable[T] = ()) -> tuple[T, ...]:
        """Return the items and more as a tuple. To copy a list is several times as fast as to go through it."""
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
