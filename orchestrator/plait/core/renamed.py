"""Public names that have changed: old to new. An old one works for one minor version, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import tomllib
import warnings
from importlib import resources

REMOVED_IN = "0.3"


@functools.cache
def renamed_classes() -> dict[str, str]:
    """Return the old names of classes, each with the new one."""
    return tomllib.loads(resources.files("plait.core").joinpath("renamed.toml").read_text("utf-8"))["classes"]


def class_name(module: str, name: str) -> str | None:
    """Return the new name of a class, with a warning; `None` for a name that has not changed."""
    new = renamed_classes().get(name)
    if new is not None:
        message = f"{module}.{name} is deprecated and will be removed in plait {REMOVED_IN}: write {module}.{new}"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new
