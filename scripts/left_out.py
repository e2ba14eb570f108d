"""Takes out of installed distributions the needs that `make setup` leaves out on purpose, so that `pip check` is quiet.

    python scripts/left_out.py [--all-of NAME …] [NEED …]

`NEED`: a distribution that nothing shall ask for any more. `--all-of NAME`: this one is used without any of its needs.
Only the environment of this Python changes: the lines `Requires-Dist` of installed distributions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from collections.abc import Collection
from pathlib import Path

__all__ = ["leave_out"]

_NEED = re.compile(r"^Requires-Dist:\s*([A-Za-z0-9._-]+)")


def normal(name: str) -> str:
    """Return the name of a distribution as package indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def leave_out(needs: Collection[str], all_of: Collection[str], paths: list[str] | None = None) -> list[str]:
    """Take needs out of the distributions on `paths` (by default this Python's); return the lines, with whose they
    were."""
    unwanted, alone = {normal(name) for name in needs}, {normal(name) for name in all_of}
    gone: list[str] = []
    found = importlib.metadata.distributions(path=paths) if paths is not None else importlib.metadata.distributions()
    for distribution in found:
        name, files = normal(distribution.metadata["Name"]), distribution.files or ()
        file = next((file for file in files if str(file).endswith(".dist-info/METADATA")), None)
        if file is None:
            continue
        path, kept = Path(str(file.locate())), list[str]()
        head, gap, text = path.read_text("utf-8").partition("\n\n")  # the description, which follows, is not looked at
        for line in head.splitlines():
            need = _NEED.match(line)
            if need is not None and (name in alone or normal(need[1]) in unwanted):
                gone.append(f"{name}: {line}")
            else:
                kept.append(line)
        if len(kept) < len(head.splitlines()):
            path.write_text("\n".join(kept) + gap + text, "utf-8")
    return gone


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("needs", nargs="*", metavar="NEED")
    parser.add_argument("--all-of", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    for line in leave_out(options.needs, options.all_of):
        print(line)
