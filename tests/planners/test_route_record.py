"""Strategies as data: the planner `route_record`, and its regret."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plait.core.errors import FieldError
from plait.core.ops import Plugin
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.scripted import Reply, Scripted
from plait_research.planners.routes import RouteRecord
from plait_research.route.ranking import Tier


def tiers(*known: tuple[float, float]) -> tuple[Tier, ...]:
    return tuple(
        Tier(planner=Plugin(name="sample", options={"n": n}), wins=wins, losses=losses)
        for n, (wins, losses) in enumerate(known, 1)
    )


def regret(shares: tuple[float, ...], requests: int, seed: int, learns: bool = True) -> float:
    """Play a record on planners with these chances, counting after each request; return how many right answers it has
    less, in expectation, than the best arm alone."""
    rng = random.Random(seed)
    counts = [[0.0, 0.0] for _ in shares]
    lost = 0.0
    for number in range(requests):
        planner = RouteRecord(candidates=tiers(*((wins, losses) for wins, losses in counts)))
        chosen = (
            planner.candidates.index(planner.drawn(seed, f"request {number}")) if learns else rng.randrange(len(shares))
        )
        lost += max(shares) - shares[chosen]
        counts[chosen][rng.random() >= shares[chosen]] += 1
    return lost


def test_regret_grows_slowly_and_is_far_below_that_of_chance() -> None:
    shares = (0.8, 0.65, 0.5)
    short, long = (sum(regret(shares, n, seed) for seed in range(8)) / 8 for n in (100, 400))
    chance = sum(regret(shares, 400, seed, learns=False) for seed in range(8)) / 8
    assert long < 0.35 * chance
    assert long < 3 * short, "four times the requests cost less than three times the regret"


def test_the_same_request_has_the_same_planner() -> None:
    planner = RouteRecord(candidates=tiers((3, 3), (3, 3), (3, 3)))
    chosen = [planner.drawn(1, f"q{n}").planner.options["n"] for n in range(60)]
    assert chosen == [planner.drawn(1, f"q{n}").planner.options["n"] for n in range(60)]
    assert set(map(str, chosen)) == {"1", "2", "3"}
    sure = RouteRecord(candidates=tiers((0, 500), (500, 0)))
    assert {str(sure.drawn(0, f"q{n}").planner.options["n"]) for n in range(50)} == {"2"}


@pytest.mark.parametrize(
    "wrong",
    [{"candidates": [{"planner": {"name": "route"}}]}, {"candidates": [{"planner": {"name": "x"}, "wins": -1}]}],
)
def test_planners_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        RouteRecord(**wrong)


async def test_it_plans_as_what_was_drawn_does() -> None:
    spec = Plugin(
        name="route-record",
        options={"candidates": [{"planner": {"name": "sample", "options": {"n": 3}}}]},
    )
    async with AsyncOrchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as orchestrator:
        answer = await orchestrator.run("2 + 2?", planner=spec)
    assert answer.answer == "4"
    assert sum(step.kind == "think" for step in answer.trace) == 3
