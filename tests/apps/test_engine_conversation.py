"""A conversation on the real engine: a turn that is added continues the token ids of the first."""

from __future__ import annotations

from typing import Any

import pytest

from plait import AsyncOrchestrator, Flow

pytestmark = [pytest.mark.engine, pytest.mark.own_engine]


class TwoTurns(Flow):
    """Asks twice in one conversation."""

    async def run(self, ctx: Flow.Context, question: str) -> Any:
        first = await ctx.think("3 5 7 11 -> 24", chat=True, max_tokens=12)
        second = await first.think("1 2 3 4 -> 10", chat=True, max_tokens=12, frequency_penalty=0.5)
        return [first.result.model_dump(mode="json"), second.result.model_dump(mode="json")]


async def test_a_turn_is_added_token_for_token_and_what_the_engine_cannot_do_is_refused() -> None:
    async with AsyncOrchestrator(worker="engine", model="countdown", journal="off") as orchestrator:
        answer = await orchestrator.run("x", planner=TwoTurns)
        refused = await orchestrator.run("x", generation={"extra_body": {"a": 1}})
        templated = await orchestrator.run("x", generation={"reasoning_effort": "low"})
    assert answer.failure is None, answer.failure
    turns: Any = answer.value
    first, second = turns
    context = [*first["prompt_ids"], *first["token_ids"]]
    assert second["prompt_ids"][: len(context)] == context
    assert len(second["prompt_ids"]) > len(context)
    assert second["usage"]["cached"] > 0 or len(context) < 32  # whole blocks alone are cached
    assert answer.anew == ()
    assert refused.failure is not None and "extra_body" in refused.failure.message
    assert templated.failure is not None and "this model has none" in templated.failure.message
