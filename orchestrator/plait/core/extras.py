"""Packages that only some extras install: imported when needed; a missing one raises an error with the remedy."""

from __future__ import annotations

import importlib
from types import ModuleType


def extra(module: str, remedy: str, error: type[Exception]) -> ModuleType:
    """Return a module of a package that may not be installed.

    Raises `error` with the remedy if the package is missing. An installed package that lacks one of its own
    raises `ModuleNotFoundError`: that is another fault.

    >>> extra("json", "nothing to do", ValueError).dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if module.split(".")[0] != (missing.name or "").split(".")[0]:
            raise
        raise error(remedy) from None
