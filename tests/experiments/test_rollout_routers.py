"""Engines in virtual time: what is read, when it ends; and the page of routers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from experiments.rollout_routers import run
from experiments.rollout_routers.contenders import Plait
from experiments.rollout_routers.engines import (
    BLOCK,
    CACHE,
    ENGINES,
    HALF,
    PEAK,
    READ_RATE,
    Play,
    Trajectory,
    draw_batch,
)
from experiments.rollout_routers.published import PublishedCache


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


def test_seconds_saved_are_beside_verl_and_reads_beside_dynamo_on_the_same_draw() -> None:
    rows: list[dict[str, Any]] = [
        {"way": way, "shape": shape, "draw": draw, "computed": computed, "unique": 20,
         "seconds": seconds + draw, "nine_tenths": 4.0, "generated": [1, 3, 3, 3]}
        for shape in run.SHAPES for draw in (0, 2)
        for way, seconds, computed in ((run.PLAIT, 9, 30), (run.VERL, 10, 40), (run.DYNAMO, 9, 50 + 10 * draw))
    ]  # fmt: skip
    page = run.page_of([json.dumps(row) for row in rows])
    line = "1.50 (1.50–1.50) | 48.6 (40.0–57.1) | 10.0 (9.0–11.0) | 9.2 (8.3–10.0) | 6.0 (5.0–7.0) | 0.40 (0.40–0.40) |"
    assert page.count(f"| {run.PLAIT} | {line}") == 2 and "of 2 draws" in page


def test_a_published_cache_says_what_it_holds() -> None:
    held, blocks = set[int](), dict[tuple[int | None, tuple[int, ...]], int]()

    def publish(place: int, events: list[dict[str, Any]], context: Sequence[int]) -> None:
        for event in events:
            if event["type"] == "BlockRemoved":
                held.difference_update(event["block_hashes"])
                continue
            before, ids = event["parent_block_hash"], event["token_ids"]
            assert before is None or before in held
            for number, each in enumerate(event["block_hashes"]):
                blocks[before, tuple(ids[number * BLOCK : (number + 1) * BLOCK])] = before = each
                held.add(each)

    cache, rng = PublishedCache(0, publish), Random(1)
    contexts = [[rng.getrandbits(16) for _ in range(60_000)] for _ in range(10)]
    for _ in range(40):
        context = rng.choice(contexts)[: rng.randrange(BLOCK, 60_000)]
        cache.cached(context)
        cache.add(context)
        before: int | None = None
        for start in range(0, len(context) // BLOCK * BLOCK, BLOCK):
            before = blocks[before, tuple(context[start : start + BLOCK])]
            assert before in held
        assert len(held) <= len(cache) <= CACHE // BLOCK
    assert len(blocks) > len(held), "blocks were evicted"
