"""Files with what people asked and what models said: only their owner may read them, as with journals."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written(path: Path) -> Generator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends without an error; only the user may read it. A link at
    `path` is replaced, not followed."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(beside, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            error.filename = str(path)
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only the user may read; all of it, or nothing. A path that is not a regular file, such as
    `/dev/stdout`, is written to directly."""
    if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
        path.write_bytes(content)
        return
    with written(path) as file:
        file.write(content)
