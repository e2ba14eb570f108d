"""A class in a file of the user's own, `FILE.py:Class`, on the command line."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from ...core.addresses import allow
from ...core.errors import UsageError

__all__ = ["local"]

_LOCAL = re.compile(r"(?P<file>[^:]+\.py):(?P<name>\w+)(?P<rest>:.*)?", re.DOTALL)


def local(text: str) -> str:
    """Return the spec of a plugin with `FILE.py:Class` made into `module:Class`, which is allowed by that; any other
    spec as it is. The folder of the file is put at the end of `sys.path`. Raises `UsageError`."""
    found = _LOCAL.fullmatch(text)
    if found is None:
        return text
    file = Path(found["file"]).expanduser().resolve()
    if not file.is_file():
        raise UsageError(f"there is no file {found['file']}: give FILE.py:Class, or pkg.mod:Class for a module")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        module = importlib.import_module(file.stem)
    except Exception as error:  # whatever a file of the user's does
        raise UsageError(f"{found['file']} cannot be loaded: {type(error).__name__}: {error}") from error
    if Path(module.__file__ or "").resolve() != file:
        raise UsageError(f"{found['file']} has the name of another module ({module.__file__}): rename the file")
    allow(f"{file.stem}:{found['name']}")
    return f"{file.stem}:{found['name']}{found['rest'] or ''}"
