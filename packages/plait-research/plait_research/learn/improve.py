"""One round of learning: run problems, reflect on failed ones, test the proposal on others, accept or reject it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import JsonValue

from plait.core.plan import Plan

from .accept import PairedTest, paired_test
from .learnable import Values, Version, Versions
from .reflect import proposal, reflection

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class ProblemTrial:
    """A problem that was run."""

    score: float
    lesson: str = ""
    """Feedback on the problem, for the model that reflects."""


Solve = Callable[[Values, Sequence[P]], Awaitable[list[ProblemTrial]]]
"""Runs problems with these values."""
Ask = Callable[[Plan], Awaitable[str]]
"""Runs a plan and returns its output's text."""


@dataclass(slots=True)
class Round(Generic[P]):
    """The result of a round."""

    failed: int
    proposed: Values = field(default_factory=dict[str, JsonValue])
    faults: list[str] = field(default_factory=list[str])
    """Reasons why the proposal could not be tested."""
    outcome: PairedTest | None = None
    version: Version | None = None
    """The new version, if it was accepted."""


async def improve(
    versions: Versions,
    train: Sequence[P],
    validation: Sequence[P],
    solve: Solve[P],
    ask: Ask,
    *,
    level: float = 0.1,
    seed: int = 0,
    groups: int | None = None,
    chat: bool = False,
) -> Round[P]:
    """Run one round. A useless change is accepted with a probability of at most `level`.

    The problems of `train` show failures. The problems of `validation` decide and never lead to proposals. Keep a third
    set to measure the final result. `chat`: whether the reflecting model gets messages.
    """
    now = dict(versions.current.values)
    # This form of the comparison counts NaN as a failure.
    failed = [trial for trial in await solve(now, train) if not trial.score >= 1.0]
    if not failed:
        return Round(0)
    learnables = list(versions.learnables.values())
    plan = reflection(learnables, now, [trial.lesson for trial in failed], seed=seed, groups=groups, chat=chat)
    suggested = proposal(await ask(plan))
    changed = {name: value for name, value in suggested.items() if now.get(name) != value}
    made: Round[P] = Round(len(failed), changed)
    if not changed:
        made.faults = ["the reply proposes no change"]
        return made
    made.faults = versions.faults(changed)
    # An invalid value is not corrected here: the model's intention is unknown.
    if made.faults:
        return made
    before = await solve(now, validation)
    after = await solve({**now, **changed}, validation)
    made.outcome = paired_test([trial.score for trial in before], [trial.score for trial in after], level)
    if made.outcome.accepted:
        made.version = versions.add(changed, str(made.outcome))
    return made
