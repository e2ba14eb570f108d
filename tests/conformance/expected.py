"""What a check expects of a model's words.

The upstream without a model says what it is told, so a check of it asks for just those words. A real model says what it
likes. Of that one a check asks for the form, the fields and the reasons, and for any text; the text is noted, since the
table asks for the same text direct and through plait.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

REAL = bool(os.environ.get("CONFORMANCE_REAL"))
"""Whether the upstream has a real model."""
TEXTS: list[str] = []
"""What the real model said in the check under way."""


class Text(str):
    """Equal to itself, or to any text of a real model."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if not REAL:
            return str.__eq__(self, other)
        return isinstance(other, str) and bool(other.strip()) and not TEXTS.append(other.strip())

    def __ne__(self, other: object) -> bool:
        return not self == other

    def drawn(self, other: object) -> bool:
        """Return whether it equals a text that was drawn at random. That of a real model is not noted: it is another
        each time."""
        return str.__eq__(self, other) if not REAL else isinstance(other, str) and bool(other.strip())

    def within(self, other: Any) -> bool:
        """Return whether it is a part of something."""
        return self == other if REAL else self in other


class Count(int):
    """Equal to itself, or to any number of a real model."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) if REAL else int.__eq__(self, other)


FINE = Text("All is fine.")
SUNNY = Text("It is sunny.")
THREE = Count(3)


def grows(partial: Iterable[Any]) -> bool:
    """Return whether an object of six fields came in several states. A busy machine joins some of the six; a real
    model's limit may cut it after the first."""
    return len(dict.fromkeys(map(repr, partial))) >= (1 if REAL else 4)


def is_rome(city: Any) -> bool:
    """Return whether a city is the one that the upstream without a model knows, or has the fields of one."""
    if REAL:
        return isinstance(city.name, str) and isinstance(city.people, int)
    return (city.name, city.people) == ("Rome", 3)


def called(calls: Any) -> Any:
    """Return the calls of an answer. Raises where a real model that may call chose not to: what follows cannot be
    asked of it."""
    if REAL and not calls:
        raise LookupError("the model did not call")
    return calls
