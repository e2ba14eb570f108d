"""Does a keep-alive request save work on vLLM's own engine while an agent's tool runs?

Twelve agents on one engine in this process (vLLM on a CPU, the bundled model), whose prefix cache holds all contexts,
three quarters or half of them. Each agent has six turns of eight tokens and a tool between two turns, short (0.2 s) for
half of the agents and long (1.5 s) for the others. vLLM evicts the context that was used least recently, and has no
other public way to keep one. So a request of one token with the whole context makes it recent: every 0.1 s for the
agents with short tools (*soon*, KVFlow's rule: keep what is needed next), or for all agents (*all*).

The figures: prompt tokens computed, by turns alone and with keep-alive requests, divided by the unique ones; the
number of keep-alive requests; the seconds until all agents have ended. Tokens are the engine's own counts.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence

from plait import ModelCall
from plait.core.events import Job
from plait.core.ops import Tokens
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.runtime.client.config import Config
from plait.workers.engine import Engine

from .._tools.measure import Row, spread
from .._tools.prompts import BYTES_A_TOKEN

AGENTS, TURNS, ROUNDS, BLOCK = 12, 6, 3, 32
FIRST, ADDED, WRITTEN = 240, 40, 8
TOOLS_S = (0.2, 1.5)
EVERY_S = 0.1
WAYS = ("none", "soon", "all")
LARGEST = FIRST + (TURNS - 1) * (ADDED + WRITTEN) + WRITTEN
SHARES = {"all contexts fit": 1.3, "three quarters fit": 0.75, "half fits": 0.5}


async def ask(engine: Engine, ids: Sequence[int], tokens: int, attempts: itertools.count[int]) -> Result:
    """Return the engine's answer to token ids."""
    op = ModelCall(prompt=(Tokens(ids=tuple(ids)),), sampling=Sampling(max_tokens=tokens, temperature=0.0))
    *_, last = [item async for item in engine.run(Job(attempt=next(attempts), run="r", step="r:s", op=op))]
    assert isinstance(last, Result), last
    return last


async def play(engine: Engine, way: str, seed: int, attempts: itertools.count[int]) -> tuple[Counter[str], float]:
    """Let all agents run, and return the counts and the seconds."""
    counts: Counter[str] = Counter()

    async def keep(ids: Sequence[int]) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            usage = (await ask(engine, ids, 1, attempts)).usage
            counts["requests"] += 1
            counts["kept"] += usage.prompt - usage.cached

    async def agent(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        ids = [rng.randrange(20, 148) for _ in range(FIRST)]
        tool_s = TOOLS_S[number % 2]
        await asyncio.sleep(rng.random() * TOOLS_S[1])
        for turn in range(TURNS):
            result = await ask(engine, ids, WRITTEN, attempts)
            counts["turns"] += result.usage.prompt - result.usage.cached
            counts["unique"] += FIRST if turn == 0 else ADDED + WRITTEN
            ids += [*result.token_ids, *(rng.randrange(20, 148) for _ in range(ADDED))]
            if turn + 1 < TURNS:
                is_kept = way == "all" or (way == "soon" and tool_s == TOOLS_S[0])
                keeper = asyncio.create_task(keep(ids[:-ADDED])) if is_kept else None
                await asyncio.sleep(tool_s)
                if keeper is not None:
                    keeper.cancel()
                    await asyncio.gather(keeper, return_exceptions=True)

    began = time.perf_counter()
    await asyncio.gather(*map(agent, range(AGENTS)))
    return counts, time.perf_counter() - began


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    rows: list[Row] = []
    attempts = itertools.count(1)
    for name, share in SHARES.items():
        cache = int(share * AGENTS * LARGEST) * BYTES_A_TOKEN
        engine = Engine(
            Config(journal="off").model, slots=32, kv_cache_memory_bytes=cache, engine_args={"block_size": BLOCK}
        )
        await engine.start()
        played: dict[str, list[tuple[Counter[str], float]]] = {way: [] for way in WAYS}
        try:
            for seed, way in itertools.product(range(ROUNDS), WAYS):
                played[way].append(await play(engine, way, 100 * seed + WAYS.index(way), attempts))
        finally:
            await engine.close()
        for way in WAYS:
            turns = spread([counts["turns"] / counts["unique"] for counts, _ in played[way]])
            both = spread([(counts["turns"] + counts["kept"]) / counts["unique"] for counts, _ in played[way]])
            requests = spread([counts["requests"] for counts, _ in played[way]])
            seconds = spread([seconds for _, seconds in played[way]])
            rows.append(Row(f"{name}, {way}", f"{both}; turns alone {turns}", f"{requests} requests", f"{seconds} s"))
    return rows
