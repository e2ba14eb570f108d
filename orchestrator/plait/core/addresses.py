"""The only importer of functions and classes that a text names as `pkg.mod:name`.

Importing a module runs its code. A name may come from data (a row of a batch, a plan, a journal, a model's text), so a
name is imported only if the caller has allowed it by an argument of the SDK or a flag of the command line.

>>> allow("math:floor")
>>> resolve("math:floor", "scorer")(2.5)
2
>>> resolve("os:system", "scorer")
Traceback (most recent call last):
...
plait.core.errors.PluginError: scorer os:system is a name of Python code, which only the caller may allow: ...
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from .errors import PluginError

_ADDRESS = re.compile(r"[\w.]+:\w+")
_allowed: dict[str, None] = {}
_modules: dict[str, None] = {}


def allow(*addresses: str) -> None:
    """Allow the import of `pkg.mod:name`, and of other plugins in the same module, for the life of the process."""
    for address in addresses:
        _allowed[address] = None
        _modules[address.partition(":")[0]] = None


def is_allowed(address: str, *, plugin: bool = False) -> bool:
    """Return whether an address is allowed; for a plugin class, also if another name of its module is allowed."""
    return address in _allowed or (plugin and address.partition(":")[0] in _modules)


def find_addresses(value: object) -> Iterator[str]:
    """Yield the addresses in a value's texts, without keys; `plain+a.b:f` yields `a.b:f`."""
    if isinstance(value, str):
        yield from (part for part in value.split("+") if _ADDRESS.fullmatch(part))
    elif isinstance(value, Mapping):
        for inner in cast("Mapping[object, object]", value).values():
            yield from find_addresses(inner)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for inner in cast("Sequence[object]", value):
            yield from find_addresses(inner)


def check(address: str, what: str, *, plugin: bool = False) -> None:
    """Raise `PluginError` for an address that is not allowed; `what` begins the message."""
    if not is_allowed(address, plugin=plugin):
        raise PluginError(
            f"{what} {address} is a name of Python code, which only the caller may allow: add --allow {address} "
            f'(in Python: Orchestrator(allow=["{address}"]))'
        )


def resolve(address: str, what: str) -> Callable[..., object]:
    """Return the function at an address; `what` begins the error message. Raises `PluginError` for a name that is not
    allowed, missing or not a function, and any exception of the module's import."""
    check(address, what)
    module, _, name = address.partition(":")
    try:
        named: object = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise PluginError(f"{what} {address}: {module} cannot be imported ({error}); is it installed?") from error
    if not callable(named):
        raise PluginError(f"{what} {address}: there is no function {name!r} in {module}")
    return named
