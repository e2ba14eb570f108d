"""Arguments of the wrong kind, refused in words before anything starts."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, cast

from ...core.errors import UsageError
from ...core.interfaces import Worker
from ...core.messages import did_you_mean

T = TypeVar("T")


def instance(name: str, given: object, kind: type[T] | UnionType, example: str) -> T:
    """Return an argument that is of a kind. Raises `UsageError` with an example."""
    if not isinstance(given, kind):
        raise UsageError(f"{name}={reprlib.repr(given)} is no {getattr(kind, '__name__', kind)}: write {example}")
    return cast("T", given)


def iterable(name: str, given: object, example: str) -> Iterable[Any]:
    """Return an argument that holds several things, unread. Raises `UsageError` with an example."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        said = reprlib.repr(cast("object", given))
        raise UsageError(f"{name}={said} is no list: write {example}")
    return cast("Iterable[Any]", given)


def tools(given: object) -> tuple[Any, ...]:
    """Return tools as a tuple. Raises `UsageError`."""
    return () if given is None else tuple(iterable("tools", given, "tools=[function]"))


def workers(given: object) -> list[Worker] | None:
    """Return ready-made workers as a list; `None` if they are left out. An empty list leaves an orchestrator for tools.

    Raises `UsageError`.
    """
    if given is None:
        return None
    found = list(iterable("workers", given, "workers=[Scripted([…])]"))
    for each in found:
        if isinstance(each, type) or not isinstance(each, Worker):
            raise UsageError(
                f"workers: {reprlib.repr(each)} is no worker: give instances, such as workers=[Scripted([…])]"
            )
    return found


def known(what: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Raise `UsageError` for an option whose name is none of `names`."""
    names = list(names)
    for name in given:
        if name not in names:
            raise UsageError(f"{what} has no option {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}")
