"""What runs on the cluster as a Ray job: one `plait` command. The files that it was to keep go into the job's log."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

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
    code = _run(options.command)
    for path in options.keep:
        sys.stdout.flush()
        unfinished = path.with_name(f"{path.name}.progress")
        if not path.is_file() and unfinished.is_file():  # of a batch that was stopped: it can be gone on with
            path = unfinished
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


def _run(command: Sequence[str]) -> int:
    """Run the command and return its exit code. When the job is cancelled (SIGTERM, and a few seconds later SIGKILL) it
    ends, and what it has written so far is kept."""

    def stopped(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stopped)  # until the command has a handler of its own
    try:
        return run(command)
    except KeyboardInterrupt:
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if __name__ == "__main__" else before)


if __name__ == "__main__":
    sys.exit(main())
