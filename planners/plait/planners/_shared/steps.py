"""Steps that several planners share: one model call, and the single fallback call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Unpack

from plait.core.call_config import CallConfig
from plait.core.errors import PluginError
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Part, Plugin
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
from plait.core.view import Branch

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


def build_planner(brief: PlanningContext, spec: Plugin) -> Planner:
    """Return the planner that a specification names. Raises `PluginError` for another kind of plugin."""
    made = brief.plugin("planner", spec)
    if not isinstance(made, Planner):
        raise PluginError(f"{spec.name!r} is not a planner")
    return made


def mark_owner(plan: Plan, owner: Plugin) -> Plan:
    """Return a planner's plan in which the steps that expand name their planner (`owner`)."""
    spec = owner.model_dump(mode="json")
    steps = [
        step.model_copy(update={"state": {"tier": spec, "state": step.state}}) if step.expands else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps)})


def delegated_reader(step: Step, brief: PlanningContext) -> Reader | None:
    """Return the owner's reader of a step that names its planner (`mark_owner`); `None` for other steps."""
    match step.state:
        case {"tier": dict() as spec, "state": state}:
            owner = Plugin.model_validate(spec)
            reader = build_planner(brief, owner).reader(step.model_copy(update={"state": state}), brief)
            return _OwnedReader(reader, owner) if not hasattr(reader, "merged") else _OwnedJoinReader(reader, owner)
        case _:
            return None


class _OwnedReader:
    """Reads a step with the reader of the planner that made the step."""

    def __init__(self, reader: Reader, owner: Plugin) -> None:
        self.reader, self.owner = reader, owner

    def feed(self, delta: str) -> Sequence[Plan]:
        """Return the reader's patches."""
        return [mark_owner(patch, self.owner) for patch in self.reader.feed(delta)]

    def close(self, result: Result) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.close(result)
        return None if made is None else mark_owner(made, self.owner)


class _OwnedJoinReader(_OwnedReader):
    """Reads a join and its branches with the reader of the planner that made the join."""

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Return the reader's last patch."""
        made = self.reader.merged(result, branches)  # type: ignore[attr-defined]
        return None if made is None else mark_owner(made, self.owner)


ANSWER, DIRECT, ALONE = "answer", "direct", "alone"


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


def direct_fallback_join(branch: str) -> Step:
    """Return the join `answer`, which passes a step's value on. It expands even if that step failed: its reader
    (`instead`) then plans the single call."""
    return through(ANSWER, branch, expands=True, allow_failure=True, role=ANSWER)


def fallback_reader(asker: Asker, prompt: CallConfig) -> OnResult:
    """Return the reader of `answer`."""

    def read(result: Result) -> Plan | None:
        if result.value is not None:
            return None
        return asker.direct(prompt, f"one call instead ({result.why})")

    return OnResult(read)


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
