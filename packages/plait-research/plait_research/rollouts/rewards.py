"""Rewards of rollouts: whether the answer is right, with or without a share for a short critical path, or a function of
the user's own."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from plait.apps.common.dataset import DatasetQuestion
from plait.core.errors import UsageError
from plait.core.messages import did_you_mean
from plait.runtime.client.answer import Answer
from plait.runtime.client.parallelism import parallelism
from plait.runtime.plugins.spec import own_code

from .record import Record
from .store import reward as as_reward

Reward = Callable[[DatasetQuestion, Answer], float | None]
OwnReward = Callable[[Record], float | None]
_ACCELERATED = re.compile(r"accelerated(?::(?P<share>\d+(?:\.\d+)?))?")
_SHARE = 0.2


def reward_of(spec: str) -> Reward:
    """Return the reward that a text names: `verified`; `accelerated` or `accelerated:SHARE`; `FILE.py:FUNCTION`, which
    is called with the answer and the right answer. Raises `UsageError`."""
    if spec == "verified":
        return _verified
    if (matched := _ACCELERATED.fullmatch(spec)) is not None:
        share = _SHARE if matched["share"] is None else float(matched["share"])
        return lambda question, answer: _accelerated(question, answer, share)
    if ".py:" in spec:
        return _own(spec)
    near = did_you_mean(spec.partition(":")[0], ("verified", "accelerated"))
    raise UsageError(f"no reward is called {spec!r}{near}: there are verified, accelerated[:SHARE], FILE.py:FUNCTION")


def _verified(question: DatasetQuestion, answer: Answer) -> float | None:
    """Return 1 for a right answer, 0 for a wrong or missing answer, and `None` for a failed run."""
    if answer.status in ("failed", "cancelled"):
        return None
    return float(question.is_right(answer.answer))


def _accelerated(question: DatasetQuestion, answer: Answer, share: float) -> float | None:
    """Return `1 + share * (1 - critical / total)` for a right answer (ThreadWeaver, arXiv 2512.07843), 0 for a wrong
    one: so a wrong answer never gains by being quick.

    `critical` counts tokens on the longest chain of steps, `total` those of all calls, agents made at run time
    included. AsyncThink (arXiv 2510.26658) rewards total / critical, in agents at work at a time; the critical steps of
    Kimi K2.5's PARL count turns on the same chain.
    """
    right = _verified(question, answer)
    return right and right + share * parallelism(answer.report).acceleration


def _own(spec: str) -> Reward:
    call = _function("--collect reward", spec)
    return lambda question, answer: call(answer, question.want)


def own_reward_of(spec: str) -> OwnReward:
    """Return the judge of single sequences that a text names: `FILE.py:FUNCTION`, which is called with a record. Raises
    `UsageError`."""
    return _function("--collect own", spec)


def _function(option: str, spec: str) -> Callable[..., float | None]:
    """Return a user's function as a reward function."""
    module, _, name = own_code(spec).partition(":")
    function: Any = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise UsageError(f"{option} {spec}: the file has no function {name!r}")
    call: Callable[..., object] = function

    def reward(*judged: Any) -> float | None:
        try:
            return as_reward(call(*judged))
        except Exception as error:  # a user's function may raise anything
            raise UsageError(f"{option} {spec} failed: {type(error).__name__}: {error}") from error

    return reward
