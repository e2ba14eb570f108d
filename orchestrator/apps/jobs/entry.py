"""What runs on the cluster as a Ray job: one `plait` command, after which the files it was to keep go into the log.

The Jobs API has one way back, the log, and so files travel in it, compressed and in lines of their own; `plait job`
takes them out again. It does not know what the command does.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["LIMIT", "main", "packed", "split_log"]

MARK = "plait-file"
LIMIT = 64 << 20
"""Bytes of one kept file, compressed; larger ones belong on storage that the cluster shares."""
_CHUNK = 48_000
_LINE = re.compile(rf"^{MARK} (\d+)/(\d+) (\S+) (\S*)$")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and print the files; return its exit code (1 if one of the files is missing)."""
    parser = argparse.ArgumentParser(prog="plait job", description=__doc__)
    parser.add_argument("--keep", action="append", default=[], type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(words)
    from ..main import run

    code = run(options.command)
    for path in options.keep:
        sys.stdout.flush()
        if not path.is_file():
            sys.stderr.write(f"plait job: {path} was to be kept, but the command did not write it\n")
            code = code or 1
            continue
        lines = packed(path.name, path.read_bytes())
        if lines is None:
            sys.stderr.write(f"plait job: {path} has over {LIMIT >> 20} MiB: write it to storage that is shared\n")
            code = code or 1
            continue
        sys.stdout.writelines(line + "\n" for line in lines)
        sys.stdout.flush()
    return code


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


if __name__ == "__main__":
    sys.exit(main())
