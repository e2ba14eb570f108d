"""What a plugin's class declares about itself, for listings, pages and tests: its source, its record, its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .values import Frozen

__all__ = ["Fidelity", "PluginModel"]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How near a published method is to its authors' code."""

    kind: Literal["exact", "variant", "idea", "formula"]
    differs: str = ""
    """What differs; a variant must say it."""
    oracles: tuple[str, ...] = ()
    """Files in `tests/oracles` that hold the authors' results."""
    paper: str = ""
    """Number at arXiv."""


class PluginModel(Frozen):
    """Base of plugins that are made of options alone."""

    fidelity: ClassVar[Fidelity | None] = None
    """`None`: not a published method."""
    lost_in: ClassVar[tuple[str, ...]] = ()
    """Experiments that measured the plugin, if it lost in all of them. `plait serve` does not offer such a plugin."""
    cost_exponent: ClassVar[float] = 1.0
    """Work grows with this power of the number of branches; `tests/complexity` measures it."""
