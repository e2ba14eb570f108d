"""What a lost attempt leaves behind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The beginning of a step's text, as token ids."""

    ids: tuple[int, ...]
    text: str
    """The same as text, if the step streams."""
