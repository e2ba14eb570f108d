"""The plugins of a folder, without importing them: a plugin is a file or a package."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def module_names(folder: str) -> list[str]:
    """Return the module names of the plugins in a folder, sorted; what begins with an underscore is none."""
    found = [path for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if not path.name.startswith(("_", ".")))
