"""Arithmetic sampling in a running engine: the model's own distribution, line by line and over all lines."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.planners._shared.steps import trajectory_code
from plait.workers.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
CHI_SQUARE = 24.32
"""The quantile at 0.999 for seven degrees of freedom."""


async def ask(worker: Any, attempt: int, *, generated: tuple[int, ...] = (), **sampling: Any) -> Result:
    think = ModelCall(prompt=(Text(text="w1 w2 w3"),), sampling=Sampling(**sampling))
    job = Job(attempt=attempt, run="r", step=f"r:s{attempt}", op=think, generated=generated)
    async for item in worker.run(job):
        last = item
    assert isinstance(last, Result), last
    return last


async def lines(worker: Any, n: int, codes: list[float | None], **sampling: Any) -> list[Result]:
    asked = (ask(worker, 100 + i, seed=i, arithmetic=codes[i], temperature=0.7, **sampling) for i in range(n))
    return await asyncio.gather(*asked)


async def test_the_lines_divide_the_distribution_after_temperature_and_top_k_exactly(engine: Engine) -> None:
    n = 200
    codes: list[float | None] = [trajectory_code(3, i, n) for i in range(1, n + 1)]
    for limit, tokens in ({"top_k": 4}, 4), ({"min_p": 0.5}, None), ({"top_p": 0.05}, None):
        drawn = await lines(engine, n, codes, max_tokens=1, logprobs=1, **limit)
        counts = Counter(each.token_ids[0] for each in drawn)
        raw = {each.token_ids[0]: each.logprob for each in drawn}
        assert tokens is None or len(counts) == tokens
        weights = {token: math.exp(said / 0.7) for token, said in raw.items() if said is not None}
        total = math.fsum(weights.values())
        # Each token has its share to within a line: at random two or three lines would be usual.
        assert all(abs(counts[token] - n * each / total) <= 1.01 for token, each in weights.items()), (limit, counts)


async def test_a_line_of_a_uniform_code_is_an_ordinary_sample(engine: Engine) -> None:
    n = 240
    uniform: list[float | None] = [trajectory_code(900 + i, 1, 1) for i in range(n)]
    by_code = await lines(engine, n, uniform, max_tokens=3, top_k=2)
    by_chance = await lines(engine, n, [None] * n, max_tokens=3, top_k=2)
    ours, others = (Counter(tuple(each.token_ids) for each in drawn) for drawn in (by_code, by_chance))
    cells = set(ours) | set(others)
    assert len(cells) <= 8
    assert sum((ours[cell] - others[cell]) ** 2 / (ours[cell] + others[cell]) for cell in cells) < CHI_SQUARE


async def test_a_line_is_the_same_again_in_other_company(engine: Engine) -> None:
    codes: list[float | None] = [trajectory_code(7, i, 6) for i in range(1, 7)]
    together = await lines(engine, 6, codes, max_tokens=12, top_k=8)
    alone = await lines(engine, 1, codes, max_tokens=12, top_k=8)
    mixed = await asyncio.gather(
        *(ask(engine, 50 + i, temperature=1.0, seed=i, max_tokens=12 + i) for i in range(4)),
        ask(engine, 60, max_tokens=12),
        ask(engine, 61, seed=0, arithmetic=codes[0], temperature=0.7, max_tokens=12, top_k=8),
    )
    assert alone[0].token_ids == together[0].token_ids == mixed[-1].token_ids
    assert len({each.token_ids for each in together}) == 6
    greedy, plain = mixed[-2], await ask(engine, 62, max_tokens=12, arithmetic=0.9)
    assert plain.token_ids == greedy.token_ids  # temperature 0 has no use for a code
