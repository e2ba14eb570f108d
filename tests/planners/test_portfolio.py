"""Strategies as data: the planner `portfolio` and its regret."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plait.core.errors import FieldError
from plait.core.ops import Plugin
from plait.planners.effort.portfolio import Arm, Portfolio
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.scripted import Reply, Scripted


def arms(*known: tuple[float, float]) -> tuple[Arm, ...]:
    return tuple(
        Arm(planner=Plugin(name="sample", options={"n": n}), wins=wins, losses=losses)
        for n, (wins, losses) in enumerate(known, 1)
    )


def regret(shares: tuple[float, ...], requests: int, seed: int, learns: bool = True) -> float:
    """Play a portfolio on arms with these chances, counting after each request; return how many right answers it has
    less, in expectation, than the best arm alone."""
    rng = random.Random(seed)
    counts = [[0.0, 0.0] for _ in shares]
    lost = 0.0
    for number in range(requests):
        planner = Portfolio(arms=arms(*((wins, losses) for wins, losses in counts)))
        chosen = planner.arms.index(planner.choose(seed, f"request {number}")) if learns else rng.randrange(len(shares))
        lost += max(shares) - shares[chosen]
        counts[chosen][rng.random() >= shares[chosen]] += 1
    return lost


def test_regret_grows_slowly_and_is_far_below_that_of_chance() -> None:
    shares = (0.8, 0.65, 0.5)
    short, long = (sum(regret(shares, n, seed) for seed in range(8)) / 8 for n in (100, 400))
    chance = sum(regret(shares, 400, seed, learns=False) for seed in range(8)) / 8
    assert long < 0.35 * chance
    assert long < 3 * short, "four times the requests cost less than three times the regret"


def test_the_same_request_has_the_same_arm() -> None:
    planner = Portfolio(arms=arms((3, 3), (3, 3), (3, 3)))
    chosen = [planner.choose(1, f"q{n}").planner.options["n"] for n in range(60)]
    assert chosen == [planner.choose(1, f"q{n}").planner.options["n"] for n in range(60)]
    assert set(map(str, chosen)) == {"1", "2", "3"}
    sure = Portfolio(arms=arms((0, 500), (500, 0)))
    assert {str(sure.choose(0, f"q{n}").planner.options["n"]) for n in range(50)} == {"2"}


@pytest.mark.parametrize(
    "wrong",
    [{"arms": []}, {"arms": [{"planner": {"name": "portfolio"}}]}, {"arms": [{"planner": {"name": "x"}, "wins": -1}]}],
)
def test_arms_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        Portfolio(**wrong)


async def test_a_portfolio_plans_as_its_arm_does() -> None:
    spec = Plugin(name="portfolio", options={"arms": [{"planner": {"name": "sample", "options": {"n": 3}}}]})
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as orchestrator:
        answer = await orchestrator.run("2 + 2?", planner=spec)
    assert answer.answer == "4"
    assert sum(step.kind == "think" for step in answer.trace) == 3
