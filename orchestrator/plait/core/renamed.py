"""Public names that have changed: old to new. An old one works for one minor version, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import tomllib
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from typing import NamedTuple, ParamSpec, TypeVar

REMOVED_IN = "0.3"
P = ParamSpec("P")
T = TypeVar("T")


class OldNames(NamedTuple):
    """The tables of `renamed.toml`: old to new names."""

    classes: dict[str, str]
    words: dict[str, list[str]]
    plugins: dict[str, dict[str, str]]


@functools.cache
def tables() -> OldNames:
    """Return the old names."""
    return OldNames(**tomllib.loads(resources.files("plait.core").joinpath("renamed.toml").read_text("utf-8")))


def warn(old: str, new: str, depth: int = 3) -> None:
    """Warn that a name has changed, at the caller `depth` frames up."""
    message = f"{old} is deprecated and will be removed in plait {REMOVED_IN}: write {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=depth)


def class_name(module: str, name: str) -> str | None:
    """Return the new name of a class, with a warning; `None` for a name that has not changed."""
    new = tables().classes.get(name)
    if new is not None:
        warn(f"{module}.{name}", f"{module}.{new}", 4)
    return new


def current(
    given: Mapping[str, T], takes: Collection[str], subject: str = "", own: Mapping[str, str] | None = None
) -> dict[str, T]:
    """Return fields under their current names.

    Args:
        given: fields, some perhaps under old names. takes: the current names. subject: subject of the warning; empty
        for recorded data, which causes no warning. own: names of this one plugin, which go before those of all.
    """
    fields: dict[str, T] = {}
    for name, value in given.items():
        new = name
        if name not in takes:
            new = (own or {}).get(name) or next((word for word in tables().words.get(name, ()) if word in takes), name)
        if new != name and new in given:
            new = name  # both names are given: the old name is rejected as unknown
        if new != name and subject:
            warn(f"{subject}: `{name}`", f"`{new}`", 4)
        fields[new] = value
    return fields


def accept(**old: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a function whose parameters have changed their names: `@accept(anyway="force")`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> T:
            if not named.keys().isdisjoint(old):
                for name in old.keys() & named.keys():
                    warn(f"{function.__name__}({name}=)", f"{old[name]}=")
                    named[old[name]] = named.pop(name)
            return function(*args, **named)

        return call

    return decorate
