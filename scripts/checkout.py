"""The roots of a checkout: folders that each hold a part of `plait` or a side distribution."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOTS", "SIDE", "python_path"]

ROOTS = ("orchestrator", "planners", "policies", "workers")
"""Folders that hold a part of the package `plait` each, relative to the top of the repository. The first one holds the
package's `__init__.py`, so it comes first on any path."""
SIDE = ("packages/plait-bench", "packages/plait-research", "packages/plait-router", "packages/plait-server")
"""Folders of the side distributions that hold code, each the root of a package."""


def python_path(checkout: Path, *more: Path | str) -> str:
    """Return a `PYTHONPATH` for a checkout: its roots, its other distributions, its top, then `more`."""
    distributions = sorted((checkout / "packages").glob("*/pyproject.toml"))
    folders = [*(checkout / root for root in ROOTS), *(path.parent for path in distributions), checkout, *more]
    return os.pathsep.join(map(str, folders))
