"""What runs on the cluster as a Ray job: one `plait` command. The files that it was to keep go into the job's log."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..main import run
from .log_files import LIMIT, UNPACKED_LIMIT, packed

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and print the files; return its exit code (1 if one of the files is missing)."""
    parser = argparse.ArgumentParser(prog="plait job", description=__doc__)
    parser.add_argument("--keep", action="append", default=[], type=Path)
    parser.add_argument("--key", default="")
    parser.add_argument("--here", action="store_true", help="run in the folder that was uploaded")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(words)
    folder = None if options.here else Path(tempfile.mkdtemp(prefix="plait-job-"))
    if folder is not None:
        os.chdir(folder)  # not the folder that somebody started the cluster in
    code = run(options.command)
    for path in options.keep:
        sys.stdout.flush()
        if not path.is_file():
            sys.stderr.write(f"plait job: {path} was to be kept, but the command did not write it\n")
            code = code or 1
            continue
        lines = packed(path.name, path.read_bytes(), options.key) if path.stat().st_size <= UNPACKED_LIMIT else None
        if lines is None:
            sys.stderr.write(
                f"plait job: {path} has over {LIMIT >> 20} MiB compressed (or {UNPACKED_LIMIT >> 20} MiB): write it to "
                "storage that the cluster shares\n"
            )
            code = code or 1
            continue
        sys.stdout.writelines(line + "\n" for line in lines)
        sys.stdout.flush()
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()
        if folder.exists():
            sys.stderr.write(f"plait job: what the command wrote is in {folder} on {os.uname().nodename}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
