"""Chooses between the machine's sources and the modules compiled of them (`make compiled`).

The compiled ones are used only while the sources are those that they were made of, and they themselves are those that
the build left: nobody runs other code than they read. `PURE_PLAIT=1` leaves them out (names that begin with `PLAIT_`
are settings).
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

MACHINE = Path(__file__).parent / "machine"
STAMP = "compiled.sha256"
"""File beside the compiled modules: what they were made of, and what they are."""


def extensions(folder: Path = MACHINE) -> list[Path]:
    """Return the compiled modules of a folder, those for other interpreters too, and the library that they share, which
    mypyc leaves beside the package."""
    there = [*folder.glob("*"), *folder.parent.parent.glob("plait__mypyc.*")]
    return sorted(path for path in there if path.suffix in (".so", ".pyd"))


def checksum(sources: Path = MACHINE, made: Path | None = None) -> str:
    """Return a checksum of the sources in a folder, and of what was compiled of them, by default in the same one."""
    digest = hashlib.sha256()
    for path in (*sorted(sources.glob("*.py")), *extensions(made or sources)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def choose(folder: Path = MACHINE) -> bool:
    """Have the modules of a folder, of which none is imported yet, loaded from their sources unless those compiled fit.
    Return whether compiled ones are used."""
    if not extensions(folder):
        return False
    try:
        fit = not os.environ.get("PURE_PLAIT") and (folder / STAMP).read_text("utf-8") == checksum(folder)
    except OSError:
        fit = False
    if not fit:  # Python would take the compiled ones: this finder knows sources alone
        sys.path_importer_cache[str(folder)] = FileFinder(str(folder), (SourceFileLoader, SOURCE_SUFFIXES))
    return fit
