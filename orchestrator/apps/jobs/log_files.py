"""Files in the log of a job, which is the one way back that Ray's Jobs API has: compressed, in lines of their own.

A model's text stands in the same log and may look like such a line. So every line is signed with a key that was made
when the job was submitted, and a line without a right signature is ordinary text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable

__all__ = ["LIMIT", "MARK", "UNPACKED_LIMIT", "new_key", "packed", "split_log"]

MARK = "plait-file"
LIMIT = 64 << 20
"""Bytes of one kept file, compressed; larger ones belong on storage that the cluster shares."""
UNPACKED_LIMIT = 512 << 20
"""Bytes of one kept file, unpacked."""
_CHUNK = 48_000
_MOST = LIMIT * 4 // 3 // _CHUNK + 2
"""Lines of one file."""
_LINE = re.compile(rf"{MARK} (\d{{1,6}})/(\d{{1,6}}) ([\w.\-]{{1,200}}) ([0-9a-f]{{64}}) (\S*)", re.ASCII)


def new_key() -> str:
    """Return a new key for the files of one job."""
    return secrets.token_hex(32)


def packed(name: str, content: bytes, key: str) -> list[str] | None:
    """Return a file as lines of a log; `None` if it is too large."""
    body = gzip.compress(content, mtime=0)
    if len(body) > LIMIT or len(content) > UNPACKED_LIMIT:
        return None
    text = base64.b64encode(body).decode("ascii")
    pieces = [text[i : i + _CHUNK] for i in range(0, len(text), _CHUNK)]
    safe = re.sub(r"[^A-Za-z0-9_.\-]", "_", name)[-200:]
    heads = [f"{i}/{len(pieces)} {safe}" for i in range(1, len(pieces) + 1)]
    return [f"{MARK} {head} {_signed(key, head, piece)} {piece}" for head, piece in zip(heads, pieces, strict=True)]


def split_log(lines: Iterable[str], key: str) -> tuple[list[str], dict[str, bytes]]:
    """Return what a log says without the files in it, and the files that are whole; `key` is the job's ("": none)."""
    rest: list[str] = []
    pieces: dict[tuple[str, int], dict[int, str]] = {}
    for line in lines:
        found = _LINE.fullmatch(line.rstrip("\r\n")) if line.startswith(MARK) and key else None
        if found is None or not _is_ours(found, key):
            rest.append(line)
            continue
        pieces.setdefault((found[3], int(found[2])), {})[int(found[1])] = found[5]
    files: dict[str, bytes] = {}
    for (name, count), found in pieces.items():
        if sorted(found) == list(range(1, count + 1)):
            content = _unpacked("".join(found[i] for i in sorted(found)))
            if content is not None:
                files[name] = content
    return rest, files


def _signed(key: str, head: str, piece: str) -> str:
    return hmac.new(key.encode(), f"{head} {piece}".encode(), hashlib.sha256).hexdigest()


def _is_ours(found: re.Match[str], key: str) -> bool:
    if found[3].strip(".") == "" or not 1 <= int(found[2]) <= _MOST:
        return False
    return hmac.compare_digest(_signed(key, f"{found[1]}/{found[2]} {found[3]}", found[5]), found[4])


def _unpacked(text: str) -> bytes | None:
    """Return what was packed; `None` for what is not whole or would be larger than is allowed."""
    unzip = zlib.decompressobj(wbits=31)
    try:
        content = unzip.decompress(base64.b64decode(text, validate=True), UNPACKED_LIMIT)
    except (ValueError, zlib.error):
        return None
    return content if unzip.eof else None
