"""The plugins of a folder, without importing them: a plugin is a file or a package."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

from plait.runtime.plugins.entry_points import GROUPS

ROOT = Path(__file__).resolve().parents[1]


def module_names(folder: str) -> list[str]:
    """Return the module names of the plugins in a folder, sorted, without those that begin with an underscore.

    `folder` is relative to the top of the repository, or `planners`: all planners, also of side distributions.
    """
    if folder == "planners":
        home = ROOT / "planners/plait/planners"
        families = [path for path in home.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))]
        families += ROOT.glob("packages/*/plait_*/planners")
    else:
        families = [ROOT / folder]
    found = [path for family in families for path in family.iterdir()]
    modules = [path for path in found if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in modules if not path.name.startswith(("_", ".")))


def sharing(module: str) -> list[str]:
    """Return the classes of the plugins that share a file: of `plait.policies` by its `SHARED`, of a side distribution
    by its entry points."""
    if not module.startswith("plait."):
        entries = [entry for group in GROUPS.values() for entry in importlib.metadata.entry_points(group=group)]
        offered = {entry.attr for entry in entries if entry.module == module}
        return list(offered) if len(offered) > 1 else []
    family, _, file = module.rpartition(".")
    homes: dict[str, str] = {}
    if family.startswith("plait.policies."):
        homes = getattr(importlib.import_module(family), "SHARED", {})
    return [home.partition(":")[2] for home in homes.values() if home.partition(":")[0] == file]
