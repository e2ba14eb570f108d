"""Engines in virtual time: what is read, when it ends; and the page of routers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.rollout_routers import run
from experiments.rollout_routers.contenders import Plait
from experiments.rollout_routers.engines import ENGINES, HALF, PEAK, READ_RATE, Play, Trajectory, draw_batch


class To:
    """Sends every request to one engine."""

    def __init__(self, place: int = 0) -> None:
        self._place = place

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        return self._place

    async def release(self, request: int) -> None:
        """Nothing to do."""


async def test_seconds_and_tokens_are_those_of_the_model() -> None:
    ids = list(range(160))
    play = Play(To(), [Trajectory("a", list(ids), [100], [0.0]), Trajectory("b", list(ids), [100], [0.0])])
    await play.run()
    # The second finds all blocks cached but that of its last token; one token each until the second has been read.
    alone, both = (1 + HALF) / PEAK, (2 + HALF) / PEAK
    ahead = 16 / READ_RATE / alone
    first = 176 / READ_RATE + (100 - ahead) * both
    assert play.engines[0].computed == 160 + 16 and play.unique == 160
    assert play.ends == [pytest.approx(first), pytest.approx(first + ahead * alone)]


async def test_a_later_turn_continues_its_context_after_a_pause() -> None:
    play = Play(To(1), [Trajectory("a", list(range(1600)), [32, 16], [5.0, 0.0])])
    await play.run()
    context = 1600 + 32 + 300  # with what the tool returned
    assert play.engines[1].computed == 1600 + 300 and play.unique == 1600 + 300
    assert play.ends == [pytest.approx(1900 / READ_RATE + 48 * (1 + HALF) / PEAK + 5.0)]
    assert play.engines[1].cache.cached([*range(1600)]) == 1584 and context % 16 == 12


async def test_the_router_plays_a_batch() -> None:
    batch = draw_batch("several turns", 1)[:64]
    play = Play(Plait(), batch)
    await play.run()
    assert len(play.ends) == 64 and sum(sum(each.lengths) for each in batch) == sum(e.generated for e in play.engines)
    assert sum(e.computed for e in play.engines) >= play.unique and len(play.engines) == ENGINES


def test_seconds_saved_are_beside_verl_on_the_same_draw() -> None:
    rows: list[dict[str, Any]] = [
        {"way": way, "shape": shape, "draw": draw, "computed": 30, "unique": 20, "seconds": seconds + draw,
         "nine_tenths": 4.0, "generated": [1, 3, 3, 3]}
        for shape in run.SHAPES for draw in (0, 2) for way, seconds in ((run.PLAIT, 9), (run.VERL, 10))
    ]  # fmt: skip
    page = run.page_of([json.dumps(row) for row in rows])
    line = "1.50 (1.50–1.50) | 10.0 (9.0–11.0) | 9.2 (8.3–10.0) | 6.0 (5.0–7.0) | 0.40 (0.40–0.40) |"
    assert page.count(f"| {run.PLAIT} | {line}") == 2 and "of 2 draws" in page
