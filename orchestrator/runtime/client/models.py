"""Models by name: those that come with plait, and those that `plait model get` has fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...core.errors import ConfigError

__all__ = ["BUNDLED", "CHAT", "FETCHED", "cache", "fetched", "folder_of"]

BUNDLED = Path(__file__).parents[2] / "models"
FETCHED = ("smollm2",)
"""Names of models that can be fetched."""
CHAT = "smollm2"
"""The one among them that plain questions go to where nobody names a model."""


def cache() -> Path:
    """Return the folder of the models that were fetched or converted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plait" / "models"


def fetched(name: str) -> Path | None:
    """Return the folder of a model that was fetched or converted, or `None` if it is not there."""
    folder = cache() / name
    return folder if (folder / "config.json").is_file() else None


def folder_of(model: str) -> str:
    """Return the folder of a model that is known by its name; any other text as it is.

    Raises `ConfigError` for one that has to be fetched first.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", model) or Path(model).exists():
        return model
    if (BUNDLED / model / "config.json").is_file():
        return str(BUNDLED / model)
    folder = fetched(model)
    if folder is None and model in FETCHED:
        raise ConfigError(f"the model {model} is not on this machine yet: fetch it with `plait model get {model}`")
    return model if folder is None else str(folder)
