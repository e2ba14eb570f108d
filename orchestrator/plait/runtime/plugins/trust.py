"""Whose names of Python code may be imported: those of the caller's own arguments, not those of data."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Generator, Iterable, Iterator
from contextvars import ContextVar
from errno import ENOENT
from pathlib import Path

from ...core.addresses import allow, check, find_addresses
from ...core.errors import UsageError
from ...core.ops import Join, Plugin
from ...core.plan import Plan

_data: ContextVar[bool] = ContextVar("plait-untrusted", default=False)
is_untrusted = _data.get
"""Returns whether requests are data here."""


@contextlib.contextmanager
def untrusted() -> Generator[None]:
    """Treat requests made in this block as data (rows of a file), whose names allow no code."""
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
    """Raise `PluginError` for an address in data that was not allowed; `what` names its source."""
    for address in _addresses(given):
        check(address, f"{what}:")


def _addresses(given: Iterable[Plugin | Plan | str | None]) -> Iterator[str]:
    for spec in given:
        if isinstance(spec, Plan):
            yield from _addresses(step.op.merge for step in spec.steps if isinstance(step.op, Join))
        elif isinstance(spec, Plugin):
            yield from find_addresses([spec.name, spec.options])
        elif spec is not None:
            yield from _addresses([Plugin.of(spec)])


_NAMED = re.compile(r"(?P<before>^|[=+])(?P<file>(?:(?<=^)[^:=,+]+|[^\s:=,+\[\]\"']+)\.py):(?P<name>\w+)(?=$|[,:+])")
"""`FILE.py:NAME` at the beginning of a text, where the value of an option begins, or as the judge of a task."""


def own_code(text: str) -> str:
    """Return the spec of a plugin with each `FILE.py:NAME` in it made into `MODULE:NAME`, which that allows to be
    imported. `MODULE:NAME` is left as it is; if this folder has the file `MODULE.py`, the module is found there.

    The folder of a file is put at the end of `sys.path`. Names in rows or request bodies must not reach it: it
    would run files of this machine. Raises `UsageError` for a file that is missing or cannot be loaded.
    """
    module, _, rest = text.partition(":")
    # `sample:n=8` is a plugin with an option, `mine:Class:n=8` a class
    if module.isidentifier() and rest.partition(":")[0].isidentifier() and (file := Path(f"{module}.py")).is_file():
        _findable(file.resolve())
    return _NAMED.sub(_imported, text)


def _findable(file: Path) -> None:
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))


def _imported(named: re.Match[str]) -> str:
    given = named["file"].strip()
    file = Path(given).expanduser().resolve()
    if not file.is_file():
        absent = FileNotFoundError(ENOENT, "", str(file))  # so that a command says which file may have been meant
        raise UsageError(f"there is no file {given}: give FILE.py:Class, or pkg.mod:Class for a module") from absent
    _findable(file)
    try:
        module = importlib.import_module(file.stem)
    except Exception as error:  # whatever a file of the user's does
        raise UsageError(f"{given} cannot be loaded: {type(error).__name__}: {error}") from error
    if Path(module.__file__ or "").resolve() != file:
        raise UsageError(f"{given} has the name of another module ({module.__file__}): rename the file")
    allow(f"{file.stem}:{named['name']}")
    return f"{named['before']}{file.stem}:{named['name']}"
