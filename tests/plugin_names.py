"""The plugins of a folder, without importing them: a plugin is a file or a package."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

from plait.runtime.plugins.entry_points import GROUPS

ROOT = Path(__file__).resolve().parents[1]


def module_names(folder: str) -> list[str]:
    """Return the names of the plugins in a folder, with underscores, sorted, without those that begin with one.

    `folder` is relative to the top of the repository, or `planners`: all planners, also of side distributions.
    """
    if folder != "planners":
        return plugins_of(ROOT / folder, {})
    home = ROOT / "planners/plait/planners"
    names = [
        name
        for path in home.iterdir()
        if path.is_dir() and not path.name.startswith(("_", "."))
        for name in plugins_of(path, shared_by(f"plait.planners.{path.name}"))
    ]
    entries = importlib.metadata.entry_points(group=GROUPS["planner"])
    names += [entry.name.replace("-", "_") for entry in entries if entry.module.startswith("plait_")]
    return sorted(set(names))


def shared_by(family: str) -> dict[str, str]:
    """Return the plugins of a package of plait that share a file: `module:Class` by name."""
    return getattr(importlib.import_module(family), "SHARED", {})


def plugins_of(folder: Path, shared: dict[str, str]) -> list[str]:
    """Return the names of a folder's files and packages, or of the plugins that share one."""
    several = {home.partition(":")[0] for home in shared.values()}
    modules = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    own = {path.stem for path in modules if not path.name.startswith(("_", "."))} - several
    return sorted(own | {name.replace("-", "_") for name in shared})


def sharing(module: str) -> list[str]:
    """Return the classes of the plugins that share a file: of plait by the family's `SHARED`, of a side distribution by
    its entry points."""
    if not module.startswith("plait."):
        entries = [entry for group in GROUPS.values() for entry in importlib.metadata.entry_points(group=group)]
        offered = {entry.attr for entry in entries if entry.module == module}
        return list(offered) if len(offered) > 1 else []
    family, _, file = module.rpartition(".")
    homes = shared_by(family) if family.startswith(("plait.policies.", "plait.planners.")) else {}
    return [home.partition(":")[2] for home in homes.values() if home.partition(":")[0] == file]
