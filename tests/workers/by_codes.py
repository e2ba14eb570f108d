"""What any worker that samples by codes must do: divide the model's own distribution, and give a line again."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Worker
from plait.core.ops import ModelCall, Text
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.planners._shared.steps import trajectory_code

LINES = 200


async def ask(worker: Worker, attempt: int, **sampling: Any) -> Result:
    """Return what one request of three words comes to."""
    think = ModelCall(prompt=(Text(text="w1 w2 w3"),), sampling=Sampling(**sampling))
    job = Job(attempt=attempt, run="r", step=f"r:s{attempt}", op=think)
    *_, last = [item async for item in worker.run(job)]
    assert isinstance(last, Result), last
    return last


async def divides_the_distribution(worker: Worker) -> None:
    """Check that each token has its share of the lines to within one, after temperature and top-k."""
    codes = [trajectory_code(3, i, LINES) for i in range(1, LINES + 1)]
    asked = [
        ask(worker, i, seed=i, arithmetic=code, temperature=0.7, max_tokens=1, logprobs=1, top_k=4)
        for i, code in enumerate(codes, 1)
    ]
    drawn = await asyncio.gather(*asked)
    counts = Counter(each.token_ids[0] for each in drawn)
    raw = {each.token_ids[0]: each.logprob for each in drawn}
    weights = {token: math.exp(said / 0.7) for token, said in raw.items() if said is not None}
    total = math.fsum(weights.values())
    assert len(counts) == len(weights) == 4
    # At random two or three lines would be usual.
    assert all(abs(counts[token] - LINES * each / total) <= 1.01 for token, each in weights.items()), counts


async def gives_a_line_again(worker: Worker) -> None:
    """Check that a line is the same alone and in company, and that lines differ."""
    codes = [trajectory_code(7, i, 6) for i in range(1, 7)]
    asked = {"temperature": 0.7, "max_tokens": 12, "top_k": 8}
    together = await asyncio.gather(*(ask(worker, 500 + i, seed=i, arithmetic=codes[i], **asked) for i in range(6)))
    alone = await ask(worker, 600, seed=0, arithmetic=codes[0], **asked)
    assert alone.token_ids == together[0].token_ids
    assert len({each.token_ids for each in together}) == 6
