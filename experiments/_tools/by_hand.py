"""What people write today: votes and spawned threads against an OpenAI server in a few lines of asyncio.

The baselines of `openai_server.py`. Each function solves one puzzle and returns whether it did. They have the means of
ours: whole answers, a gate for requests that lets first branches go first, and losers that are given up by closing
their connections. Kept as short as someone in a hurry would, but not slower than they have to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator
from typing import Any

from plait.planners._shared.steps import derive
from plait_bench.countdown import CountdownProblem, is_right

N, WIDTH, MODEL = 8, 8, "countdown"


class Client:
    """Sends at most `slots` requests at a time; of those that wait, the smallest rank goes first, then the oldest."""

    def __init__(self, create: Any, slots: int) -> None:
        """`create`: the `completions.create` of an `openai.AsyncOpenAI`."""
        self._create, self._free = create, slots
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    async def ask(self, rank: int, prompt: str, **fields: Any) -> Any:
        """Return the whole answer; a cancelled call closes its connection, and the server stops generating."""
        async with self._turn(rank):
            extra = {"skip_special_tokens": False, **fields.pop("extra", {})}
            return await self._create(model=MODEL, prompt=prompt, extra_body=extra, **fields)

    @contextlib.asynccontextmanager
    async def _turn(self, rank: int) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (rank, next(self._count), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had been given its turn already
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def steps_of(text: str) -> list[str] | None:
    """Return the steps that a text claims."""
    _, hit, claim = text.rpartition("<hit>")
    return [step.replace(" ", "") for step in claim.replace("<end>", "").split(";")] if hit and claim.strip() else None


def head(problem: CountdownProblem, word: str, width: int = 8) -> str:
    """Return the prompt of a mode."""
    return f"<{word}> {width} T{problem.target} {' '.join(map(str, sorted(problem.numbers, reverse=True)))} <go>"


async def plain_votes(client: Client, problem: CountdownProblem, seed: int) -> bool:
    """n=8 in one request; all of them are waited for."""
    done = await client.ask(0, head(problem, "serial"), n=N, temperature=1.0, max_tokens=512, seed=seed)
    return any(is_right(problem, steps_of(choice.text)) for choice in done.choices)


async def early_votes(client: Client, problem: CountdownProblem, seed: int) -> bool:
    """Eight requests side by side; the rest are given up as soon as one is right. They are drawn with the seeds that
    the planner `sample` gives its samples, since a luckier draw is no faster client."""

    async def one(i: int) -> bool:
        own = derive(seed, "sample", i + 1)
        done = await client.ask(i, head(problem, "serial"), temperature=1.0, max_tokens=512, seed=own)
        return is_right(problem, steps_of(done.choices[0].text))

    async with _given_up([one(i) for i in range(N)]) as tasks:
        for task in asyncio.as_completed(tasks):
            if await task:
                return True
        return False


async def spawn_join(client: Client, problem: CountdownProblem, seed: int) -> bool:
    """The parent spawns, children search side by side, a right one ends it; otherwise the parent continues."""

    async def say(rank: int, prompt: str, limit: int, stop: str) -> str:
        extra = {"include_stop_str_in_output": True}
        done = await client.ask(rank, prompt, temperature=0.0, max_tokens=limit, stop=[stop], extra=extra)
        return done.choices[0].text

    context = head(problem, "parent", WIDTH)
    for _ in range(4):
        text = await say(0, context, 160, "<wait>")
        context += text
        if "<spawn>" not in text:
            return is_right(problem, steps_of(text))
        items = [item.strip() for item in text.split("<spawn>")[1].replace("<wait>", "").split(";")]
        headers = [f" <child> T{problem.target} " + " ".join(map(str, sorted(
            [int(item.split("=")[1].split("|")[0]), *map(int, item.split("|")[1].split())], reverse=True)))
            + " <go>" for item in items]  # fmt: skip
        children = [say(rank, context + header, 240, "<end>") for rank, header in enumerate(headers)]
        async with _given_up(children) as tasks:
            for task in asyncio.as_completed(tasks):
                steps = steps_of(await task) or ()
                firsts = [item.split("|")[0].replace(" ", "") for item in items]
                if steps and any(is_right(problem, [first, *steps]) for first in firsts):
                    return True
        context += " <join> " + " | ".join("<none>" for _ in items) + " <go>"
    return False


@contextlib.asynccontextmanager
async def _given_up(calls: list[Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run calls side by side; those still running at the end are cancelled and awaited."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
