"""Whose names of Python code may be imported: those of the caller's own arguments, not those of data."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from contextvars import ContextVar

from ...core.addresses import allow, check, found_in
from ...core.ops import Join, Plugin
from ...core.plan import Plan
from .user_code import own_code

__all__ = ["named", "refuse", "trust", "untrusted"]

_data: ContextVar[bool] = ContextVar("plait-untrusted", default=False)


@contextlib.contextmanager
def untrusted() -> Generator[None]:
    """Have requests that are made meanwhile count as data (rows of a file): their names are allowed by nobody."""
    token = _data.set(True)
    try:
        yield
    finally:
        _data.reset(token)


def trust(*given: Plugin | Plan | str | None) -> None:
    """Allow the addresses in arguments of the caller: plugins (as text, too) and the merges of a plan."""
    if not _data.get():
        allow(*_addresses(given))


def named(given: object) -> object:
    """Return an argument of the caller with `FILE.py:Class` as `own_code` has it, if it is a text; what data says stays
    as it is. Raises `UsageError`."""
    return own_code(given) if isinstance(given, str) and not _data.get() else given


def refuse(what: str, *given: Plugin | Plan | None) -> None:
    """Raise `PluginError` for an address in data that nobody has allowed; `what` says what names it."""
    for address in _addresses(given):
        check(address, f"{what}:")


def _addresses(given: Iterable[Plugin | Plan | str | None]) -> Iterator[str]:
    for spec in given:
        if isinstance(spec, Plan):
            yield from _addresses(step.op.merge for step in spec.steps if isinstance(step.op, Join))
        elif isinstance(spec, Plugin):
            yield from found_in([spec.name, spec.options])
        elif spec is not None:
            yield from _addresses([Plugin.of(spec)])
