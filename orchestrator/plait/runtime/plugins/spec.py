"""Plugins as people write them: `Plugin.of` reads such a text, and here is what only a person's text may say."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from errno import ENOENT
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from ...core.addresses import allow, check, find_addresses
from ...core.errors import PluginError, UsageError
from ...core.ops import Join, Plugin
from ...core.plan import Plan

_FILE = re.compile(r"((?:^|[:,.])\s*template\s*=\s*)@([^,]+)")


def typed(text: str | None) -> str | None:
    """Return a plugin's text that a person typed, with a file's text in the place of `plan.template=@FILE` and with
    `FILE.py:Class` as `own_code` has it.

    What a row or a request's body says must not pass here: it would read files of this machine. Raises `PluginError`,
    `UsageError`.
    """

    def held(option: re.Match[str]) -> str:
        try:
            return option[1] + json.dumps(Path(option[2].strip()).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PluginError(f"{text!r}: {option[2].strip()} cannot be read: {error}") from None

    return text and own_code(_FILE.sub(held, text))


def spelled(plugin: Plugin | None) -> str:
    """Return a plugin in the syntax of the command line.

    >>> spelled(Plugin(name="sample", options={"n": 8, "answer": {"max_tokens": 64}}))
    'sample:n=8,answer.max_tokens=64'
    """
    if plugin is None:
        return ""
    options = ",".join(f"{key}={_written(value)}" for key, value in _leaves(plugin.options))
    return plugin.name + (f":{options}" if options else "")


def with_option(options: Mapping[str, JsonValue], name: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return options with another value under a name as people write it.

    >>> with_option({"answer": {"top_p": 1}}, "answer.max_tokens", 9)
    {'answer': {'top_p': 1, 'max_tokens': 9}}
    """
    head, dot, rest = name.partition(".")
    inner = options.get(head)
    return {**options, head: with_option(inner if isinstance(inner, dict) else {}, rest, value) if dot else value}


def _leaves(options: dict[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, value in options.items():
        # a plugin among the options, such as a merge, is written whole
        if isinstance(value, dict) and value and "name" not in value and all(map(str.isidentifier, value)):
            yield from _leaves(cast("dict[str, JsonValue]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _written(value: JsonValue) -> str:
    if isinstance(value, str) and value and "," not in value and value == value.strip() and value[0] != "@":
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, separators=(",", ":"))


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
