"""Plugins of other distributions, found by entry points. Their names are read from metadata; nothing is imported.

A distribution names its plugins in its pyproject.toml:

    [project.entry-points."plait.planners"]
    beam = "beam_planner:Beam"
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

__all__ = ["GROUPS", "InstalledPlugin", "installed"]

GROUPS = {
    "planner": "plait.planners",
    "policy": "plait.policies",
    "merge": "plait.merges",
    "task": "plait.tasks",
    "worker": "plait.workers",
    "search": "plait.searches",
    "scorer": "plait.scorers",
    "environment": "plait.environments",
}
"""The group of entry points for each kind of plugin."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that a distribution offers."""

    address: str
    """`package.module:Class`"""
    distribution: str
    """Name and version, as in `beam-planner 1.2`."""


def installed(kind: str) -> dict[str, list[InstalledPlugin]]:
    """Return the plugins of a kind by name; more than one under a name if several distributions offer it."""
    plugins: dict[str, list[InstalledPlugin]] = {}
    for entry in importlib.metadata.entry_points(group=GROUPS[kind]):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
        plugins.setdefault(entry.name.replace("_", "-"), []).append(InstalledPlugin(entry.value, origin))
    return plugins
