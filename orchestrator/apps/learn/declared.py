"""The file that declares what may be learned, and its versions beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from ...core.errors import ConfigError
from ...core.messages import explain, json_path
from .learnable import Learnable, Versions

__all__ = ["Declared", "versions_of"]

Declared = Annotated[
    Path,
    typer.Argument(metavar="LEARN.json", help="What may be learned: a list of declared values; versions beside it."),
]
_declared = TypeAdapter(list[Learnable])


def versions_of(declared: Path) -> Versions:
    """Return the versions of declared values. Raises `ConfigError` for a file that declares none."""
    try:
        learnables = _declared.validate_json(declared.read_bytes())
    except OSError as error:
        raise ConfigError(f"{declared} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise ConfigError(f"{declared}: {explain(json_path(detail['loc']) or 'it', detail)}") from None
    return Versions(declared.with_name(f"{declared.stem}.versions.json"), learnables)
