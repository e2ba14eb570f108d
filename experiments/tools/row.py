"""What is kept of one question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One question, asked one way."""

    text: str
    way: str
    latency: float
    failing: float
    right: bool
    model_calls: int
    tool_calls: int
    tokens: int
    seconds: float
    load: float
    """Threads of the machine that ran or waited for a core."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by `PARTS`, and `joiner`: those of the model's last call; empty in rows of older versions."""
