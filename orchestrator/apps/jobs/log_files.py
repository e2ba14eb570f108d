"""Files in the log of a job: Ray's Jobs API has no other way back. Compressed, in lines of their own."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["LIMIT", "MARK", "packed", "split_log"]

MARK = "plait-file"
LIMIT = 64 << 20
"""Bytes of one kept file, compressed; larger ones belong on storage that the cluster shares."""
_CHUNK = 48_000
_LINE = re.compile(rf"^{MARK} (\d+)/(\d+) (\S+) (\S*)$")


def packed(name: str, content: bytes) -> list[str] | None:
    """Return a file as lines of a log; `None` if it is too large."""
    body = gzip.compress(content, mtime=0)
    if len(body) > LIMIT:
        return None
    text = base64.b64encode(body).decode("ascii")
    pieces = [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)]
    safe = re.sub(r"[^\w.\-]", "_", name)
    return [f"{MARK} {i}/{len(pieces)} {safe} {piece}" for i, piece in enumerate(pieces, 1)]


def split_log(lines: Iterable[str]) -> tuple[list[str], dict[str, bytes]]:
    """Return what a log says without the files in it, and the files that are whole."""
    rest: list[str] = []
    pieces: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for line in lines:
        found = _LINE.match(line.rstrip("\r\n"))
        if found is None:
            rest.append(line)
            continue
        name = Path(found[3]).name  # what a log says must not choose a folder
        counts[name] = int(found[2])
        pieces.setdefault(name, {})[int(found[1])] = found[4]
    files: dict[str, bytes] = {}
    for name, found in pieces.items():
        if sorted(found) == list(range(1, counts[name] + 1)):
            files[name] = gzip.decompress(base64.b64decode("".join(found[i] for i in sorted(found))))
    return rest, files
