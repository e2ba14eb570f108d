"""Agents on one real engine (vLLM on a CPU) whose cache does not hold the contexts of all: prompt tokens computed.

    python -m experiments.agents.engine [--rounds 3]

Twelve agents of eight turns with the bundled model; what it writes does not matter. A turn writes 10 tokens, its tool
takes .2 s and returns 40 tokens. The cache holds about 3,300 tokens, the last contexts together twice as many. Counts,
not times: the model has two million parameters. It reads its whole cache in less time than a tool takes, so nothing
would be held at the default `prefill_rate`; the row sets that of a model which reads 300 tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from random import Random

from plait import AsyncOrchestrator, Config, tool
from plait.core.flow import Answerable, Flow
from plait.core.ops import Plugin
from plait.workers.engine import Engine

from .._tools.model import widened
from .._tools.prompts import words

AGENTS, TURNS, HEADER, OWN, READ, WRITE, TOOL_S = 12, 8, 64, 64, 40, 10, 0.2
CACHE_BYTES = 8_500_000
RULES = ("at most 1", "", "at most 3", "working-set:prefill_rate=300")
"""One agent at a time computes each token once: its count is that of the unique tokens."""


@tool
async def look(agent: str, turn: int) -> str:
    """Return the text that an agent reads after a turn."""
    await asyncio.sleep(TOOL_S)
    return words(Random(f"{agent} {turn}"), READ)


class EngineAgent(Flow):
    """An agent whose turns each continue the last one's context."""

    agent: str = ""

    async def run(self, ctx: Flow.Context, question: str) -> Answerable:
        """Take all turns."""
        turn = await ctx.think(
            words(Random("header"), HEADER) + words(Random(self.agent), OWN), name="turn-0", max_tokens=WRITE
        )
        for number in range(1, TURNS):
            call = await ctx.call(look, agent=self.agent, turn=number)
            turn = await turn.think(str(call), name=f"turn-{number}", max_tokens=WRITE)
        return turn


async def play(rule: str, draw: int, model: Path) -> dict[str, object]:
    """Run all agents under a rule on a fresh engine."""
    most = int(rule.rpartition(" ")[2]) if rule.startswith("at most ") else AGENTS
    engine = Engine(str(model), slots=16, kv_cache_memory_bytes=CACHE_BYTES)
    policies = [Plugin.of(rule)] if rule and most == AGENTS else []
    gate = asyncio.Semaphore(most)
    async with AsyncOrchestrator(workers=[engine], tools=[look], config=Config(journal="off")) as orchestrator:

        async def run(number: int) -> tuple[int, int]:
            async with gate:
                agent = EngineAgent(agent=f"{draw}/{number}")
                answer = await orchestrator.run("agent", task="plain", planner=agent, policies=policies)
                assert answer.status == "done", answer.failure
                return answer.usage.prompt, answer.usage.cached

        used = await asyncio.gather(*map(run, range(AGENTS)))
        prompt, cached = (sum(column) for column in zip(*used, strict=True))
        return {
            "rule": rule, "draw": draw, "cache": engine.cache_tokens, "prompt": prompt, "computed": prompt - cached,
        }  # fmt: skip


def main() -> None:
    """Print a row of JSON for each rule and draw."""
    parser = argparse.ArgumentParser(prog="python -m experiments.agents.engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rule", action="append", choices=RULES, help="only this rule; may be repeated")
    given = parser.parse_args()
    with widened() as model:
        for draw in range(1, given.rounds + 1):
            for rule in given.rule or RULES:
                print(json.dumps(asyncio.run(play(rule, draw, model))), flush=True)


if __name__ == "__main__":
    main()
