"""How many prompt tokens are computed twice, on one engine and on two?

Prompt tokens computed ÷ unique tokens of the workload's token trie, on one engine and on two.

1.00 means that nothing is prefilled twice. Votes: 16 samples of one prompt of 200 tokens. Threads: puzzles by forked
children with joins, each behind an instruction prefix of its own. Turns: six turns, each continuing the one before,
with three branches that are joined. The trie is that of all prompts and outputs, in whole blocks of the cache; computed
is what the engines say of their own cache. Beside it the same with every step placed at random.
"""

from __future__ import annotations

from plait import AsyncOrchestrator, Config
from plait.core.ops import Plugin
from plait.workers.ray import pool

from .._tools.measure import Row, spread
from .._tools.reuse import BLOCK, WORKLOADS, measured

RUNS, ROUNDS = 24, 3
PLACED = (["affinity"], ["random"])


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    rows: list[Row] = []
    options = {"model": Config(journal="off").model, "slots": 64, "engine_args": {"block_size": BLOCK}}
    for engines in (1, 2):
        workers = pool(engines, options=options)
        figures: dict[tuple[str, str], list[float]] = {}
        for policies in PLACED if engines > 1 else PLACED[:1]:
            config = Config(journal="off", policies=tuple(Plugin(name=name) for name in policies))
            async with AsyncOrchestrator(workers=workers, config=config) as orchestrator:
                for number in range(ROUNDS):
                    for name, make in WORKLOADS.items():
                        seed = hash((engines, policies[0], name, number)) & 0xFFFFFF
                        plans = [make(seed + i) for i in range(RUNS)]
                        figure = await measured(orchestrator, plans)
                        figures.setdefault((name, policies[0]), []).append(figure)
            workers = pool(engines, options=options)
        for name in WORKLOADS:
            for policies in PLACED[:-1] if engines > 1 else PLACED[:1]:
                ours = spread(figures[name, policies[0]])
                base = figures.get((name, "random"))
                goal = "≤ 1.05" if engines == 1 else "≤ 1.25"
                beside = f"random {spread(base)}" if base else ""
                compared = f"{ours.median / spread(base).median:.3g}" if base else ""
                rows.append(Row(f"{name}, {engines} engines, {policies[0]}", str(ours), beside, compared, goal))
    return rows
