"""Sequences that share their beginnings: the messages of a conversation, kept once for all its turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from ..core.chat import Message

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
