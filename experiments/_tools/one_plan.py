"""One plan of independent model calls, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from plait import AsyncOrchestrator, Budget, Join, ModelCall, Plan, Sampling, Step
from plait.core import Text


async def rate_plan(
    orchestrator: AsyncOrchestrator, texts: list[str], width: int, tokens: int | Sequence[int]
) -> float:
    """Generate for all texts as one plan with `width` calls in flight; return tokens a second. `tokens`: of each
    answer, in turn where there are several."""
    lengths = [tokens] if isinstance(tokens, int) else tokens
    samplings = [Sampling(max_tokens=length, temperature=0.0) for length in lengths]
    steps = [
        Step(name=f"t{i}", op=ModelCall(prompt=(Text(text=text),), sampling=samplings[i % len(samplings)]))
        for i, text in enumerate(texts)
    ]
    join = Step(name="all", op=Join(), needs=tuple(step.name for step in steps))
    plan = Plan(steps=(*steps, join), output="all", budget=Budget(width=width))
    start = time.perf_counter()
    answer = await orchestrator.run(plan=plan)
    seconds = time.perf_counter() - start
    assert answer.status == "done", answer.failure
    return answer.total_tokens / seconds
