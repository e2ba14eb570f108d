"""The peers that the benchmarks write by hand: their gate, and that they give their losers up."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from experiments._tools import by_hand
from plait_bench.countdown import CountdownProblem

PUZZLE = CountdownProblem((3, 5, 7, 11), 26)
RIGHT = "<hit> 11+7=18 ; 18+5=23 ; 23+3=26 <end>"


class Server:
    """Answers after a while; writes down what it was asked, and what was given up."""

    def __init__(self, reply: Any = lambda prompt: "no") -> None:
        self.reply, self.asked, self.given_up = reply, list[str](), list[str]()
        self.running = self.most = 0

    async def create(self, *, prompt: str, **fields: Any) -> Any:
        self.asked.append(prompt)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            said = self.reply(prompt)
            await asyncio.sleep(0.001 if said else 3600)
        except asyncio.CancelledError:
            self.given_up.append(prompt)
            raise
        finally:
            self.running -= 1
        return SimpleNamespace(choices=[SimpleNamespace(text=said)] * fields.get("n", 1))


async def test_the_gate_keeps_its_limit_and_its_order() -> None:
    server = Server()
    client = by_hand.Client(server.create, slots=2)
    await asyncio.gather(*(client.ask(rank, f"{rank}") for rank in (9, 8, 3, 2, 1, 2)))
    assert server.most == 2
    assert server.asked == ["9", "8", "1", "2", "2", "3"]


@pytest.mark.parametrize("seed", range(20))
async def test_a_cancelled_request_gives_its_turn_back(seed: int) -> None:
    rng = random.Random(seed)
    server = Server()
    client = by_hand.Client(server.create, slots=3)
    tasks = [asyncio.create_task(client.ask(rng.randrange(4), "x")) for _ in range(40)]
    for _ in range(30):
        await asyncio.sleep(rng.choice((0, 0, 0.0005)))
        rng.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert server.most <= 3 and client._free == 3 and server.running == 0


async def test_a_vote_ends_with_the_first_right_answer() -> None:
    server = Server(lambda prompt: RIGHT if len(server.asked) == 3 else "no" if len(server.asked) == 1 else "")
    assert await asyncio.wait_for(by_hand.early_votes(by_hand.Client(server.create, 8), PUZZLE, 1), 300)
    assert len(server.asked) == 8 and len(server.given_up) == 6 and server.running == 0
    assert not await by_hand.early_votes(by_hand.Client(Server().create, 2), PUZZLE, 1)
    assert await by_hand.plain_votes(by_hand.Client(Server(lambda _: RIGHT).create, 1), PUZZLE, 1)


async def test_a_child_that_is_right_ends_its_siblings() -> None:
    def reply(prompt: str) -> str:
        if "<child>" not in prompt:
            return "<spawn> 11+7=18|3 5; 7+5=12|3 11; 7-5=2|3 11 <wait>"
        return "<hit> 18+5=23 ; 23+3=26 <end>" if "18 5 3" in prompt else ""

    server = Server(reply)
    assert await asyncio.wait_for(by_hand.spawn_join(by_hand.Client(server.create, 8), PUZZLE, 1), 300)
    assert len(server.asked) == 4 and len(server.given_up) == 2 and server.running == 0
    alone = Server(lambda prompt: "<hit> none" if "<child>" not in prompt else "x")
    assert not await by_hand.spawn_join(by_hand.Client(alone.create, 8), PUZZLE, 1)
