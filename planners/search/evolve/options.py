"""Options of the planner `evolve`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from plait.core.flow import Flow
from plait.core.prompt import Prompt, Uses

__all__ = ["EvolveOptions"]


class EvolveOptions(Flow):
    """The fields of `Evolve`."""

    answer_prompts: ClassVar[tuple[str, ...]] = ("program",)

    program: Annotated[Prompt, Uses("question", "others", "parent", "gone")] = Prompt(
        max_tokens=1024, temperature=1.0, top_p=0.9
    )
    """Writes a program. Its template is for all but the first of an island, which are asked the question alone:
    `{parent}` is the program to improve with what became of it, `{others}` some others, `{gone}` lines that were taken
    out before."""
    n: int = Field(default=4, ge=1, le=64)
    """Populations (islands)."""
    rounds: int = Field(default=8, ge=1)
    """Programs that each of them writes (generations)."""
    migrate: int = Field(default=5, ge=0)
    """After how many generations the best goes to the next island; 0: never."""
    top: int = Field(default=3, ge=0)
    """Good programs that the model is shown besides the parent."""
    diverse: int = Field(default=2, ge=0)
    """Programs of other cells that it is shown."""
    repeats: int = Field(default=5, ge=0)
    """Timed runs of a program that passes all public cases. 0: time does not count, and the first that passes ends the
    search."""
    tool: str = "run_python"
    """The tool that runs programs."""
