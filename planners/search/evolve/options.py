"""Options of the planner `evolve`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from plait.core.flow import Flow

__all__ = ["EvolveOptions"]


class EvolveOptions(Flow):
    """The fields of `Evolve`."""

    n_option: ClassVar[str | None] = "generations"

    islands: int = Field(default=4, ge=1, le=64)
    """Populations."""
    generations: int = Field(default=8, ge=1)
    """Programs that each of them writes."""
    migrate: int = Field(default=5, ge=0)
    """After how many generations the best goes to the next island; 0: never."""
    top: int = Field(default=3, ge=0)
    """Good programs that the model is shown besides the parent."""
    diverse: int = Field(default=2, ge=0)
    """Programs of other cells that it is shown."""
    repeats: int = Field(default=5, ge=0)
    """Timed runs of a program that passes all public cases. 0: time does not count, and the first that passes ends the
    search."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Of the programs."""
    top_p: float = Field(default=0.9, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a program."""
    tool: str = "run_python"
    """The tool that runs programs."""
