"""Names of what the side distributions hold, for messages alone: plugins and commands are found by entry points.

A test holds the table in `distributions.toml` equal to the entry points in `packages/*/pyproject.toml`, so that a
plugin or command that moves into a distribution is found here too.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, str] = {distribution: row.pop("extra") for distribution, row in _TABLE.items()}
"""The extra of plait that installs a side distribution."""
CONTENTS: dict[str, dict[str, tuple[str, ...]]] = {
    distribution: {kind: tuple(names) for kind, names in row.items()} for distribution, row in _TABLE.items()
}
"""By distribution and kind: names of plugins, and words of commands."""


def explain_missing(kind: str, name: str) -> str | None:
    """Return which side distribution holds a plugin or command and how to install it, or `None` if none does."""
    for distribution, kinds in CONTENTS.items():
        if name in kinds.get(kind, ()):
            return (
                f"The {kind} `{name}` is in {distribution}, which is not installed. "
                f"Install it: pip install 'plait[{EXTRAS[distribution]}]'."
            )
    return None
