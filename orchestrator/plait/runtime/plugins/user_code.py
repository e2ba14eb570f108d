"""Code in files of the user's own, named as `FILE.py:NAME`: the one place that finds it, for plugins of every kind."""

from __future__ import annotations

import importlib
import re
import sys
from errno import ENOENT
from pathlib import Path

from ...core.addresses import allow
from ...core.errors import UsageError

__all__ = ["own_code"]

_NAMED = re.compile(r"(?P<before>^|[=+])(?P<file>(?:(?<=^)[^:=,+]+|[^\s:=,+\[\]\"']+)\.py):(?P<name>\w+)(?=$|[,:+])")
"""`FILE.py:NAME` at the beginning of a text, where the value of an option begins, or as the judge of a task."""


def own_code(text: str) -> str:
    """Return the spec of a plugin with each `FILE.py:NAME` in it made into `MODULE:NAME`, which that allows to be
    imported. `MODULE:NAME` is left as it is; if this folder has the file `MODULE.py`, the module is found there.

    The folder of a file is put at the end of `sys.path`. What a row or a request's body says must not pass here: it
    would run files of this machine. Raises `UsageError` for a file that is not there or cannot be loaded.
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
