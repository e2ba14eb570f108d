"""Optional packages, imported on demand. A missing package raises an error with the command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType


def extra(module: str, remedy: str, error: type[Exception]) -> ModuleType:
    """Import and return a module of an optional package.

    Raises `error` with the remedy if the package is missing. An installed package with a missing dependency raises
    `ModuleNotFoundError`.

    >>> extra("json", "nothing to do", ValueError).dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if module.split(".")[0] != (missing.name or "").split(".")[0]:
            raise
        raise error(remedy) from None
