"""What more samples bring: `pass@k` and `maj@k`, for each k, of one pool of samples a problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.task import Task
from ...runtime.client.answer import Answer
from .dataset import DatasetQuestion
from .intervals import bootstrap, wilson

_DRAWS = 200
"""Subsets of a pool whose majority is taken, for each k."""


class CurvePoint(NamedTuple):
    """The expected shares of k samples a problem, each with its 95 % interval."""

    k: int
    passed: tuple[float, float, float]
    """`pass@k`: at least one of k is right."""
    majority: tuple[float, float, float]
    """`maj@k`: the most frequent answer of k is right."""


@dataclass(frozen=True, slots=True)
class SamplePool:
    """The samples of one problem: the class of each answer, and which classes are right."""

    classes: tuple[int | None, ...]
    """Equal answers have equal numbers; `None` where a sample has no answer."""
    right: frozenset[int]

    def pass_at(self, k: int) -> float:
        """Return the chance that one of k samples is right: `1 - C(n - right, k) / C(n, k)` (Chen et al., 2021)."""
        wrong = sum(number not in self.right for number in self.classes)
        return 1.0 - math.comb(wrong, k) / math.comb(len(self.classes), k)

    def majority_at(self, k: int, seed: int = 0) -> float:
        """Return the chance that the most frequent answer of k samples is right, over subsets of the pool; a tie is
        right by the share of right ones in it."""
        import numpy as np

        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(len(self.classes))[:k] for _ in range(_DRAWS)]
        return sum(self._right_share([self.classes[place] for place in subset]) for subset in drawn) / len(drawn)

    def _right_share(self, subset: Sequence[int | None]) -> float:
        votes = Counter(number for number in subset if number is not None)
        most = [number for number, count in votes.items() if count == max(votes.values())]
        return sum(number in self.right for number in most) / len(most) if most else 0.0


def pool_of(question: DatasetQuestion, answer: Answer) -> dict[str, Any]:
    """Return the fields of a record that hold a vote's samples; none for a run without exactly one vote over texts, or
    one that an environment grades."""
    steps = {step.step: step for step in answer.trace}
    votes = [step for step in steps.values() if step.kind == "join" and len(step.needs) > 1]
    outputs = [steps[need].output for need in votes[0].needs if need in steps] if len(votes) == 1 else []
    texts = [output for output in outputs if isinstance(output, str)]
    # What a rule has stopped early is no random sample of answers.
    if not votes or len(texts) < len(votes[0].needs) or question.place is not None:
        return {}
    keyed = [_keyed_answer(question.task, text) for text in texts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(key for key, _ in keyed if key is not None))}
    right = {numbers[key] for key, value in keyed if key in numbers and question.is_right(value)}
    return {"samples": [numbers.get(key) for key, _ in keyed], "right_samples": sorted(right)}


def _keyed_answer(task: Task, text: str) -> tuple[Any, Any]:
    """Return the key and the answer of a sample; both are `None` if it has no answer."""
    try:
        answer = task.extract(text)
        return (None, None) if answer is None else (task.key(answer), answer)
    except Exception:  # tasks are plugins: one that fails on a text finds no answer
        return None, None


def curve(records: Sequence[Mapping[str, Any]]) -> list[CurvePoint]:
    """Return the curve at 1, 2, 4, ... samples and at all; none where a rule that stops votes made pools unequal."""
    sampled = [record for record in records if record.get("samples")]
    pools = [SamplePool(tuple(record["samples"]), frozenset(record["right_samples"])) for record in sampled]
    sizes = {len(pool.classes) for pool in pools}
    most = sizes.pop() if len(sizes) == 1 and len(pools) == len(records) else 0
    widths = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)} - {0})
    return [
        CurvePoint(k, _mean([pool.pass_at(k) for pool in pools]), _mean([pool.majority_at(k) for pool in pools]))
        for k in widths
    ]


def _mean(shares: Sequence[float]) -> tuple[float, float, float]:
    """Return a mean with its interval; the score interval where all are right or all wrong."""
    if min(shares) == max(shares) and shares[0] in (0.0, 1.0):
        return (shares[0], *wilson(round(sum(shares)), len(shares)))
    return bootstrap(shares)
