"""Steps that several planners make alike: one call of a model, and the single call to fall back on."""

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
from plait.core.result import Result
from plait.core.values import split_reasoning

__all__ = [
    "ALONE",
    "ANSWER",
    "DIRECT",
    "NO_THINKING",
    "Asker",
    "OnResult",
    "derive",
    "direct_fallback_join",
    "fallback_reader",
    "shorten",
    "strip_reasoning",
    "through",
    "trajectory_code",
]

ANSWER, DIRECT, ALONE = "answer", "direct", "alone"


@dataclass(frozen=True, slots=True)
class Asker:
    """Makes the model calls of one planner for one request."""

    planner: str
    """Its name: part of every seed."""
    brief: PlanningContext

    @property
    def question(self) -> str:
        """The request as its task puts it to a model."""
        return self.brief.task.render()

    def step(
        self, name: str, pieces: str | Sequence[Part], prompt: CallConfig | None = None, **options: Unpack[CallOptions]
    ) -> Step:
        """Return one model call."""
        return call_model(self.brief, self.planner, name, pieces, prompt, **options)

    def direct(self, prompt: CallConfig, note: str) -> Plan:
        """Return the request as one call of the model; `note` says in the answer's `why` how it came to that."""
        call = self.step(DIRECT, prompt.parts("{question}", question=self.question), prompt, label="one call")
        return Plan(steps=(call, through(ALONE, DIRECT, note)), output=ALONE)


def direct_fallback_join(branch: str) -> Step:
    """Return the join `answer`, which passes a step's value on and expands even if that step failed: its reader
    (`instead`) then plans the one call."""
    return through(ANSWER, branch, expands=True, allow_failure=True, role=ANSWER)


def fallback_reader(asker: Asker, prompt: CallConfig) -> OnResult:
    """Return the reader of `answer`."""

    def read(result: Result) -> Plan | None:
        if result.value is not None:
            return None
        return asker.direct(prompt, f"one call instead ({result.why})")

    return OnResult(read)


def strip_reasoning(text: str) -> str:
    """Return a model's text without the reasoning block before it, also where the template had opened the block. A
    block that was cut off hides everything."""
    return split_reasoning(text)[1]


def shorten(text: str, most: int = 60) -> str:
    """Return a text on one line, cut to `max_branches` characters: for labels."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1] + "…"


def trajectory_code(seed: int, index: int, n: int) -> float:
    """Return the code of line `index` of `n` (from 1): `Sampling.arithmetic`, in [0, 1).

    The codes are u, u + 1/n, u + 2/n, … modulo 1 with u made of the seed (arXiv 2210.15458, which divides by n + 1 and
    so leaves a gap twice as wide as the others). The lines take them in an order whose every beginning is spread as
    well: of 8 lines 0, 4, 2, 6, 1, 5, 3, 7 eighths. Neighbours say much the same, so in the plain order the first lines
    of a vote that may end early would agree with one another and not with the rest.
    """
    return (fraction(seed, "codes") + _van_der_corput_order(n)[index - 1] / n) % 1.0


@lru_cache(maxsize=64)
def _van_der_corput_order(n: int) -> tuple[int, ...]:
    """Return 0 … n - 1 in the order of van der Corput's sequence, which turns a number's bits round."""
    bits = (n - 1).bit_length()
    turned = (int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(1 << bits))
    return tuple(place for place in turned if place < n)
