"""Files with what people asked and what models said: only their owner may read them, as with journals."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_private", "written"]


@contextlib.contextmanager
def written(path: Path) -> Generator[BinaryIO]:
    """Yield a file that takes the place of `path` when the block ends without an error; nobody else may read it. A link
    at `path` is replaced, not followed."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read; all of it, or nothing. What is no file, such as `/dev/stdout`, is written
    to as it is."""
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        path.write_bytes(content)
        return
    with written(path) as file:
        file.write(content)
