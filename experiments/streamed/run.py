"""What does a streamed token cost a client?

CPU time, on a server without a model. 24 answers at a time, a line for each token: read by httpx alone with the JSON
of each line, by the OpenAI client, by plait without a reader, and with a reader of the run's events.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from plait import AsyncOrchestrator, Config
from plait_bench.countdown import CountdownProblem, draw

from .._tools import by_hand
from .._tools.measure import Row, interleave
from .._tools.server import Server, scripted

ANSWERS, ROUNDS, BASE = 24, 5, "openai, stream"
PLANNER = "sample:n=1,answer.temperature=1,answer.max_tokens=512,answer.stream=true"
Ask = Callable[[CountdownProblem, int], Awaitable[None]]


def ways(server: Server, bare: httpx.AsyncClient, client: object, plait: AsyncOrchestrator) -> dict[str, Ask]:
    """Return the ways to ask for a streamed answer."""

    async def lines(problem: CountdownProblem, seed: int) -> None:
        body = {"model": by_hand.MODEL, "prompt": by_hand.head(problem, "serial"), "seed": seed}
        body |= {"stream": True, "max_tokens": 512, "temperature": 1.0, "return_token_ids": True}
        async with bare.stream("POST", f"{server.url}/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    json.loads(line[6:])

    async def openai(problem: CountdownProblem, seed: int) -> None:
        create = client.completions.create  # pyright: ignore[reportAttributeAccessIssue]
        prompt = by_hand.head(problem, "serial")
        async for _ in await create(
            model=by_hand.MODEL, prompt=prompt, seed=seed, stream=True, temperature=1.0, max_tokens=512
        ):
            pass

    async def unread(problem: CountdownProblem, seed: int) -> None:
        await plait.run(problem.text, task="countdown", planner=PLANNER, seed=seed)

    async def read(problem: CountdownProblem, seed: int) -> None:
        async for _ in plait.stream(problem.text, task="countdown", planner=PLANNER, seed=seed):
            pass

    return {"httpx, lines": lines, BASE: openai, "plait, no reader": unread, "plait, read": read}


async def run(rounds: int = ROUNDS) -> list[Row]:
    """Measure and return the table's rows."""
    from openai import AsyncOpenAI

    problems = draw(ANSWERS, 9)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            scripted(Path(folder) / "log", "--base=0.004", "--each=0") as server,
            httpx.AsyncClient(timeout=60) as bare,
            AsyncOpenAI(base_url=server.url, api_key="none") as client,
            AsyncOrchestrator(config=Config(worker="http", base_url=server.url, journal="off")) as plait,
        ):

            def timed(ask: Ask) -> Callable[[], Awaitable[float]]:
                async def cost() -> float:
                    await asyncio.to_thread(server.watched)
                    start = time.process_time()
                    await asyncio.gather(*(ask(problem, seed) for seed, problem in enumerate(problems)))
                    spent = time.process_time() - start
                    return spent / (await asyncio.to_thread(server.watched))["generated"] * 1e6

                return cost

            asks = ways(server, bare, client, plait)
            figures = await interleave({name: timed(ask) for name, ask in asks.items()}, rounds)
    base = f"{BASE} {figures.spread(BASE)}"
    return [Row(name, f"{figures.spread(name)} µs a token", base, str(figures.ratio(name, BASE))) for name in asks]
