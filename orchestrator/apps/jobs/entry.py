"""What runs on the cluster as a Ray job: one `plait` command. The files that it was to keep go into the job's log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..main import run
from .log_files import LIMIT, packed

__all__ = ["main"]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and print the files; return its exit code (1 if one of the files is missing)."""
    parser = argparse.ArgumentParser(prog="plait job", description=__doc__)
    parser.add_argument("--keep", action="append", default=[], type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(words)
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


if __name__ == "__main__":
    sys.exit(main())
