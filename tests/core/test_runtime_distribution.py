"""How long n branches take: against draws, against closed forms, and against the simulator with a measured pace."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from experiments.runtimes.prediction import Branches, Problems
from plait.core import Join, ModelCall, Plan, Sampling, Step, Text
from plait_research.simulation.engine_profile import EngineProfile
from plait_research.simulation.simulator import simulate

LENGTHS = [max(1, int(Random(i).lognormvariate(4.5, 0.6))) for i in range(200)]


def drawn(n: int, k: int) -> float:
    rng = Random(n * 100 + k)
    return fmean(sorted(rng.choices(LENGTHS, k=n))[k - 1] for _ in range(3000))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (8, 4), (16, 16), (32, 3)])
def test_order_statistics_are_those_of_draws(n: int, k: int) -> None:
    found = Branches(LENGTHS).quorum(n, k)
    assert found.mean == pytest.approx(drawn(n, k), rel=0.05)
    assert found.low <= found.mean <= found.high
    assert found.p50 <= found.p90


def test_a_first_success_may_never_come() -> None:
    found = Branches([10, 20, 30, 40], [False, True, False, True]).success(2)
    assert found.happens == pytest.approx(0.75)
    assert found.mean == pytest.approx((20 * (1 - 0.75**2) + 40 * (0.75 - (1 - 0.75**2))) / 0.75)
    assert Branches([5, 6], [False, False]).success(9).happens == 0.0
    assert Branches([5, 6], [False, False]).success(9).p50 == math.inf


def test_branches_of_one_problem_are_like_one_another() -> None:
    """Easy problems end soon with any number of branches, hard ones late."""
    rng = Random(3)
    levels = [rng.lognormvariate(4.5, 0.8) for _ in range(60)]
    lots = [[max(1, round(level * rng.uniform(0.8, 1.2))) for _ in range(32)] for level in levels]
    problems = Problems([Branches(each, [length % 3 == 0 for length in each]) for each in lots])
    pooled = Branches([length for each in lots for length in each])
    real = fmean(min(rng.choices(rng.choice(lots), k=16)) for _ in range(4000))
    found = problems.first(16)
    assert found.mean == pytest.approx(real, rel=0.08)
    assert found.low < found.mean < found.high and found.p50 < found.p90
    assert pooled.first(16).mean < 0.6 * real
    assert 0.0 < problems.success(2).happens < problems.success(16).happens <= 1.0
    assert Problems([Branches([3], [False])]).success(4).happens == 0.0
    with pytest.raises(ValueError, match="at least one problem"):
        Problems([])


def test_one_problem_is_the_branches_of_it() -> None:
    alone, again = Problems([Branches(LENGTHS)]).quorum(8, 5, ENGINE.step), Branches(LENGTHS).quorum(8, 5, ENGINE.step)
    assert (alone.mean, alone.p50, alone.p90) == pytest.approx((again.mean, again.p50, again.p90))


ENGINE = EngineProfile(
    model="m", machine="x", fixed=0.004, each=0.0008, read=0.0, lengths={"s": tuple(sorted(LENGTHS))}
)


def played(n: int, k: int, rng: Random) -> float:
    """Seconds until k of n branches that are decoded together have ended."""
    seconds = before = 0.0
    for i, length in enumerate(sorted(rng.choices(LENGTHS, k=n))[:k]):
        seconds += (length - before) * ENGINE.step(n - i)
        before = length
    return seconds


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_seconds_are_those_of_an_engine_within_15_percent(n: int) -> None:
    """The first, half and all of n branches."""
    rng = Random(n)
    for k in sorted({1, n // 2, n}):
        predicted = Branches(LENGTHS).quorum(n, k, ENGINE.step)
        assert predicted.mean == pytest.approx(fmean(played(n, k, rng) for _ in range(1000)), rel=0.15)


def test_seconds_are_those_of_the_simulator() -> None:
    names = tuple(f"s{i}" for i in range(8))
    think = ModelCall(prompt=(Text(text="why?"),), sampling=Sampling(max_tokens=10_000))
    steps = (*(Step(name=name, op=think) for name in names), Step(name="j", op=Join(), needs=names))
    plan, seconds = Plan(steps=steps, output="j"), list[float]()
    for seed in range(20):
        seconds.append(simulate(plan, hosts=[ENGINE.host("e", 64)], outcome=ENGINE.outcome(), seed=seed).makespan)
    assert Branches(LENGTHS).quorum(8, 8, ENGINE.step).mean == pytest.approx(fmean(seconds), rel=0.15)


@pytest.mark.parametrize(("lengths", "marks"), [([], None), ([0], None), ([3], [True, False])])
def test_lengths_that_say_nothing_are_refused(lengths: list[int], marks: list[bool] | None) -> None:
    with pytest.raises(ValueError, match="lengths of at least one token"):
        Branches(lengths, marks)
    with pytest.raises(ValueError, match="of 2 branches 3 cannot"):
        Branches([1]).quorum(2, 3)
