"""Plugins of other distributions, found by entry points. Their names are read from metadata; nothing is imported.

A distribution names its plugins in its pyproject.toml:

    [project.entry-points."plait.planners"]
    beam = "beam_planner:Beam"
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import UsageError

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
HOOKS = "plait.hooks"
"""The group of functions that plait calls if a side distribution offers them: `forecast` for `plait plan --price`,
`lessons` for planners that learn."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that a distribution offers."""

    address: str
    """`package.module:Class`"""
    distribution: str
    """Name and version, as in `beam-planner 1.2`."""


Offers = Mapping[str, Sequence[InstalledPlugin]]
"""Plugins of a kind by name; more than one under a name if several distributions offer it."""


def installed(kind: str) -> Offers:
    """Return the plugins of a kind that other distributions offer."""
    return _read(tuple((folder, _changed(folder)) for folder in sys.path))[kind]


@functools.lru_cache(maxsize=2)
def _read(folders: tuple[tuple[str, int], ...]) -> dict[str, Offers]:
    """Read the entry points of folders that changed at these times."""
    # Cached, since it takes 10 ms and more, also for each request that names an unknown plugin. A later installation
    # changes the time of its folder, and is read.
    offers: dict[str, dict[str, list[InstalledPlugin]]] = {kind: {} for kind in GROUPS}
    entries = importlib.metadata.entry_points()
    for kind, group in GROUPS.items():
        for entry in entries.select(group=group):
            origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
            offers[kind].setdefault(entry.name.replace("_", "-"), []).append(InstalledPlugin(entry.value, origin))
    return dict(offers)


def _changed(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def find_hook(name: str) -> Callable[..., Any] | None:
    """Return the function that a distribution offers under a name in `HOOKS`, or `None`."""
    entries = importlib.metadata.entry_points(group=HOOKS, name=name)
    return next((entry.load() for entry in entries), None)


def demand_hook(name: str, what: str) -> Callable[..., Any]:
    """Return the function that plait-research offers under a name in `HOOKS`. Raises `UsageError` without it."""
    hook = find_hook(name)
    if hook is None:
        raise UsageError(f"{what} are in plait-research. Install it: pip install 'plait[research]'.")
    return hook
