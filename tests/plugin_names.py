"""The plugins of a folder, without importing them: a plugin is a file or a package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def module_names(folder: str) -> list[str]:
    """Return the module names of the plugins in a folder, sorted; what begins with an underscore is none. The planners
    stand one folder deeper, in families."""
    families = (path for path in (ROOT / folder).iterdir() if path.is_dir() and not path.name.startswith(("_", ".")))
    inside = [path for family in families for path in family.iterdir()] if folder == "planners" else []
    found = [*inside] if inside else [*(ROOT / folder).iterdir()]
    modules = [path for path in found if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in modules if not path.name.startswith(("_", ".")))
