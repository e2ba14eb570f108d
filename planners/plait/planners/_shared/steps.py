"""Steps that several planners share: one model call, and the single fallback call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Unpack

from plait.core.call_config import CallConfig
from plait.core.interfaces import PlanningContext
from plait.core.ops import Part
from plait.core.plan import Plan, Step
from plait.core.planning import (
    NO_THINKING,
    CallOptions,
    OnResult,
    call_model,
    derive,
    fraction,
    pass_through as through,
)
from plait.core.values import split_reasoning

__all__ = [
    "ALONE",
    "DIRECT",
    "NO_THINKING",
    "Asker",
    "OnResult",
    "derive",
    "shorten",
    "strip_reasoning",
    "through",
    "trajectory_code",
]


DIRECT, ALONE = "direct", "alone"


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes the model calls of one planner for one request."""

    planner: str
    """The planner's name, which is part of every seed."""
    brief: PlanningContext

    @property
    def question(self) -> str:
        """The request in the form of its task's prompt."""
        return self.brief.task.render()

    def step(
        self, name: str, pieces: str | Sequence[Part], prompt: CallConfig | None = None, **options: Unpack[CallOptions]
    ) -> Step:
        """Return one model call."""
        return call_model(self.brief, self.planner, name, pieces, prompt, **options)

    def direct(self, prompt: CallConfig, note: str) -> Plan:
        """Return the request as one model call; `note` explains the fallback in the answer's `why`."""
        call = self.step(DIRECT, prompt.parts("{question}", question=self.question), prompt, label="one call")
        return Plan(steps=(call, through(ALONE, DIRECT, note)), output=ALONE)


def strip_reasoning(text: str) -> str:
    """Return a model's text without its leading reasoning block, even if the chat template opened the block. The result
    is empty if the block was cut off."""
    return split_reasoning(text)[1]


def shorten(text: str, most: int = 60) -> str:
    """Return a text as one line for labels, cut to `max_branches` characters."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1] + "…"


def trajectory_code(seed: int, index: int, n: int) -> float:
    """Return the arithmetic sampling code (`Sampling.arithmetic`, in [0, 1)) of trajectory `index` (from 1) of `n`.

    The codes are u, u + 1/n, u + 2/n, … modulo 1 with u derived from the seed (arXiv 2210.15458 divides by n + 1, which
    leaves one gap twice as wide as the others). The trajectories take the codes in an order whose every prefix is
    spread evenly too: 0, 4, 2, 6, 1, 5, 3, 7 eighths for 8. Neighbouring codes give similar texts, so in plain order
    the first trajectories of an early-stopped vote would agree with one another and not with the rest.
    """
    return (fraction(seed, "codes") + _van_der_corput_order(n)[index - 1] / n) % 1.0


@lru_cache(maxsize=64)
def _van_der_corput_order(n: int) -> tuple[int, ...]:
    """Return 0 … n - 1 in the order of van der Corput's sequence, which reverses a number's bits."""
    bits = (n - 1).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(1 << bits))
    return tuple(place for place in turned if place < n)
