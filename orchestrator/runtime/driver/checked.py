"""What is taken from the outside: values that can be written down, counts that can be true.

The one place for it: the driver checks here what workers say, the client the texts of requests. One value that JSON or
UTF-8 cannot say would otherwise stop the journal, and with it every run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from ...core.interfaces import Progress
from ...core.result import Failure, Result, Usage

MOST = 1 << 40
"""More tokens than any attempt has. A larger count is a fault of whoever reported it."""
DEEPEST = 100
"""Levels of lists and objects in a value."""
LONGEST = 4000
"""Bits of an integer: Python reads no more than 4300 digits."""


def text(given: str) -> str:
    """Return a text in which each half of a surrogate pair, which is no character, is replaced by U+FFFD."""
    if given.isascii():
        return given
    try:
        given.encode()
    except UnicodeEncodeError:
        return given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return given


def value(given: object, depth: int = 0) -> JsonValue:
    """Return a JSON value that can be written down and read again; the same object if it is one already.

    Raises `ValueError` for an object that is no JSON, an integer that is too long, and what is nested too deep.
    """
    match given:
        case str():
            return text(given)
        case None | bool() | float():
            return given
        case int():
            if given.bit_length() > LONGEST:
                raise ValueError(f"an integer of {given.bit_length()} bits, and {LONGEST} are the most")
            return given
        case list() | tuple() | dict() if depth == DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        case dict():
            fields = cast("dict[object, object]", given)
            made = {_key(key): value(item, depth + 1) for key, item in fields.items()}
            same = all(
                key is name and made[name] is item for (key, item), name in zip(fields.items(), made, strict=False)
            )
            return cast("JsonValue", given) if same and len(made) == len(fields) else made
        case list() | tuple():
            items = cast("list[object]", given)
            listed = [value(item, depth + 1) for item in items]
            same = isinstance(given, list) and all(a is b for a, b in zip(items, listed, strict=True))
            return cast("JsonValue", given) if same else listed
        case _:
            raise ValueError(f"{type(given).__name__} is no JSON value")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} of an object is no string")
    return text(key)


def news(item: Progress) -> Progress:
    """Return a worker's news with a text that can be written and a count that can be true."""
    said, counts = text(item.text), type(item.tokens) is int and 0 <= item.tokens < MOST
    return item if counts and said is item.text else replace(item, text=said, tokens=item.tokens if counts else 0)


def end(item: Result | Failure, worker: str) -> Result | Failure:
    """Return the end of a job as it may be written; a result whose value cannot be is a failure."""
    usage = sane(item.usage)
    changed: dict[str, object] = {} if usage is item.usage else {"usage": usage}
    if isinstance(item, Failure):
        message = text(item.message)
        if message is not item.message:
            changed["message"] = message
    else:
        try:
            made = value(item.value)
        except ValueError as error:
            message = f"{worker} returned a value that cannot be written down: {error}"
            return Failure(kind="WorkerError", message=message, usage=usage)
        why = text(item.why)
        changed |= {} if made is item.value else {"value": made}
        changed |= {} if why is item.why else {"why": why}
    return item.model_copy(update=changed) if changed else item


def sane(usage: Usage) -> Usage:
    """Return a usage without counts that cannot be true; the same object if it has none."""
    wrong = {
        name: 0
        for name, count in usage
        if not 0 <= count < MOST  # false for NaN too
    }
    return usage.model_copy(update=wrong) if wrong else usage
