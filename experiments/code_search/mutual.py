"""A mutual check of programs and tests, each judged by the other (as MuPa does): compared with votes, not used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

_SLIP = 0.05
"""How often a right program fails a right test or passes a wrong one, as `mutual` supposes."""
_LUCK = (0.1, 0.5)
"""How often a wrong program passes a wrong test and a right one."""


def score_mutually(passes: Sequence[Sequence[bool]], rounds: int = 50) -> tuple[list[float], list[float]]:
    """Judge programs by tests and tests by programs at once: how likely each program is right, and each test.

    `passes[i][j]` tells whether program i passes test j. Variational expectation maximisation over both unknowns, from
    a half for programs and .8 for tests, with fixed error rates. Programs that pass the same tests count once, or
    copies of one bug would vouch for one another. Votes choose better in every world that was tried.
    """
    programs, tests = [0.5] * len(passes), [0.8] * (len(passes[0]) if passes else 0)
    alike = Counter(map(tuple, passes))
    weights = [1 / alike[tuple(row)] for row in passes]

    def odds(passed: bool, right: float, wrong: float) -> float:
        return math.log(right / wrong) if passed else math.log((1 - right) / (1 - wrong))

    for _ in range(rounds):
        before = [*programs, *tests]
        programs = [
            _sigmoid(
                sum(
                    trust * odds(passed, 1 - _SLIP, _LUCK[1]) + (1 - trust) * odds(passed, _SLIP, _LUCK[0])
                    for passed, trust in zip(row, tests, strict=True)
                )
            )
            for row in passes
        ]
        tests = [
            _sigmoid(
                math.log(4)
                + sum(
                    weight * (trust * odds(row[j], 1 - _SLIP, _SLIP) + (1 - trust) * odds(row[j], _LUCK[1], _LUCK[0]))
                    for row, trust, weight in zip(passes, programs, weights, strict=True)
                )
            )
            for j in range(len(tests))
        ]
        if all(abs(a - b) < 1e-9 for a, b in zip(before, [*programs, *tests], strict=True)):
            break
    return programs, tests


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-max(-500.0, min(500.0, x))))
