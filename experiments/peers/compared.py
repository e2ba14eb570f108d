"""What a row of the comparison is compared with, and what is aimed at."""

from __future__ import annotations

import math
from typing import Any

from .._tools.contenders import (
    THREADS,
    VOTES,
    Measurement,
    column,
)
from .._tools.measure import Spread, spread

__all__ = ["GATES", "ORDERED", "PLAIN", "WIDE", "Found", "base_of", "goal_of", "is_local", "ratio_of"]

WIDE, ORDERED = "256 at a time", "64 in order"
GATES: dict[str, dict[str, Any]] = {
    WIDE: {"slots": 256, "policies": ()},
    ORDERED: {"slots": 64, "policies": ("breadth-first",)},
}
PLAIN = "by hand, plain n=8"
Found = dict[str, list[Measurement]]


def is_local(name: str) -> bool:
    """Return whether a row has an engine of its own, and no server."""
    return "in process" in name or "Ray" in name


def base_of(name: str, found: Found) -> str:
    """Return the row by hand that a row is compared with."""
    kind = THREADS if THREADS in name else VOTES
    gate = next((gate for gate in GATES if name.endswith(gate)), None)
    bases = [f"by hand, {kind}, {each}" for each in (GATES if gate is None else (gate,))]
    return max((base for base in bases if base in found), key=lambda base: column(found[base], "rate").median)


def ratio_of(name: str, found: Found) -> Spread:
    """Return the rate of a row ÷ that of its base, taken round by round; nan while the base is missing."""
    if not any(base.startswith("by hand") and (THREADS in base) == (THREADS in name) for base in set(found) - {PLAIN}):
        return spread([math.nan])
    return spread([a.rate / b.rate for a, b in zip(found[name], found[base_of(name, found)], strict=False)])


def goal_of(name: str) -> str:
    """Return the required minimum rate, relative to the base."""
    if not name.startswith("ours"):
        return ""
    return "1.15" if is_local(name) else ("1.4" if THREADS in name else "1.0") if "defaults" in name else ""
