"""Chooses between the machine's sources and the modules compiled of them (`make compiled`).

The compiled ones are used only while the sources are those that they were made of: nobody runs other code than they
read. `PURE_PLAIT=1` leaves them out (names that begin with `PLAIT_` are settings).
"""

from __future__ import annotations

import os
import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

MACHINE = Path(__file__).parent / "machine"
STAMP = "compiled.crc32"
"""File beside the compiled modules: the checksum of what they were made of."""


def checksum(folder: Path = MACHINE) -> str:
    """Return a checksum of the sources in a folder."""
    found = 0
    for path in sorted(folder.glob("*.py")):
        found = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), found))
    return f"{found:08x}"


def choose(folder: Path = MACHINE) -> bool:
    """Have the modules of a folder, of which none is imported yet, loaded from their sources unless those compiled fit.
    Return whether compiled ones are used."""
    if not (folder / f"machine{EXTENSION_SUFFIXES[0]}").exists():
        return False
    try:
        fit = not os.environ.get("PURE_PLAIT") and (folder / STAMP).read_text("utf-8") == checksum(folder)
    except OSError:
        fit = False
    if not fit:  # Python would take the compiled ones: this finder knows sources alone
        sys.path_importer_cache[str(folder)] = FileFinder(str(folder), (SourceFileLoader, SOURCE_SUFFIXES))
    return fit
