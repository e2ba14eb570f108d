"""Rollouts whose weights change in their middle: each token keeps the log-probability of the weights that drew it.

The model's distribution is a function of the weights' version and of the context, so that masks, versions and
importance weights can be computed again from the records alone.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Join, Kind, ModelCall, Plugin, Ref, Text, Tokens
from plait.core.plan import Plan, Step
from plait.core.result import Failure, Result, TokenDraws, Usage
from plait.core.sampling import Sampling
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog
from plait_research.rollouts.record import Record, records
from plait_research.rollouts.sampler import Sampler

LETTERS, END = 4, 4
"""Tokens 0 to 3, and the one that ends a turn. A byte of text is 100 more than itself."""
SEGMENT = tuple[tuple[int, ...], int, int]


def distribution(version: int, context: Sequence[int]) -> list[float]:
    """Return the probabilities of the next token; shape (5,). A turn has 3 to 9 tokens."""
    chance = random.Random(hash((version, *context[-3:], len(context))))
    turn = next((n for n, token in enumerate(reversed(context)) if token >= 100), 0)
    weights = [chance.uniform(0.1, 1.0) for _ in range(LETTERS)]
    weights.append(0.0 if turn < 3 else 1e6 if turn > 8 else chance.uniform(0.1, 1.0))
    return [weight / sum(weights) for weight in weights]


class Coins(Worker):
    """The model. After `changes` tokens in all, it waits until new weights stop it."""

    serves: tuple[Kind, ...] = ("think",)
    name, slots = "coins", 8

    def __init__(self, changes: Sequence[int]) -> None:
        self.changes = list(changes)
        self.version = 0
        self.drawn: Counter[SEGMENT] = Counter()
        """Context, token and version of each draw."""
        self.waiting = asyncio.Event()
        self.stops: dict[int, asyncio.Event] = {}
        self.asleep = False

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def health(self) -> AsyncIterator[bool]:
        yield True
        await asyncio.Event().wait()

    async def reload(self, weights: object) -> None:
        assert not self.stops, "weights were exchanged under a request"
        self.version += 1

    async def sleep(self) -> None:
        assert not self.stops, "the memory was taken under a request"
        self.asleep = True

    async def wake(self) -> None:
        self.asleep = False

    async def cancel(self, attempt: int) -> None:
        if attempt in self.stops:
            self.stops[attempt].set()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        assert isinstance(job.op, ModelCall) and not self.asleep
        prompt: list[int] = []
        for part in job.op.parts:
            prompt += [100 + byte for byte in part.text.encode()] if isinstance(part, Text) else []
            prompt += part.ids if isinstance(part, Tokens) else []
        ids, logprobs, end = list(job.generated), list[float](), None
        stop = self.stops[job.attempt] = asyncio.Event()
        while end is None and not stop.is_set():
            if self.changes and self.drawn.total() >= self.changes[0]:
                self.changes.pop(0)
                self.waiting.set()
            if self.waiting.is_set():
                await stop.wait()
                break
            context = [*prompt, *ids]
            odds = distribution(self.version, context)
            (token,) = random.Random(hash((job.op.sampling.seed, len(context)))).choices(range(5), odds)
            self.drawn[tuple(context), token, self.version] += 1
            if token == END:
                end = (END, math.log(odds[END]))
            else:
                ids.append(token)
                logprobs.append(math.log(odds[token]))
            await asyncio.sleep(0)
        del self.stops[job.attempt]
        yield Result(
            value="".join(map(str, ids)), prompt_ids=tuple(prompt), token_ids=tuple(ids),
            usage=Usage(prompt=len(prompt), completion=len(logprobs)), finish="cancelled" if end is None else "stop",
            drawn=TokenDraws(logprobs=tuple(logprobs), end=end, processed=True, temperature=1.0),
        )  # fmt: skip


def think(name: str, text: str, seed: int, after: str | None = None, needs: Sequence[str] = ()) -> Step:
    parts = (Text(text=text), *(Ref(step=each) for each in needs))
    return Step(name=name, op=ModelCall(prompt=parts, after=after, sampling=Sampling(max_tokens=40, seed=seed)))


PLAN = Plan(
    steps=(
        think("a", "Go", 1),
        think("left", "l", 2, "a"),
        think("right", "r", 3, "a"),
        Step(name="both", op=Join(merge=Plugin(name="collect")), needs=("left", "right")),
        think("on", "on", 4, "a", ["both"]),
    ),
    output="on",
)


async def rolled(changes: Sequence[int], sleeps: bool = False, updates: bool = True) -> tuple[Coins, list[Record]]:
    """Run the plan with new weights after these numbers of tokens. `sleeps`: the model sleeps meanwhile."""
    coins = Coins(changes)
    sampler, log = Sampler(coins), RunLog(keep="attempts")
    plait = AsyncOrchestrator(workers=[sampler], journal="off")
    plait.watch(log.take)
    async with plait:
        handle = await plait.submit(plan=PLAN)
        for _ in changes:
            await coins.waiting.wait()
            coins.waiting.clear()
            if sleeps:
                await sampler.sleep()
            if updates:
                await sampler.update("new")
            if sleeps:
                before = coins.drawn.total()
                for _ in range(50):
                    await asyncio.sleep(0)
                assert coins.asleep and coins.drawn.total() == before, "held until it is awake"
                await sampler.wake()
        answer = await handle
    assert answer.status == "done"
    run = log.pop(answer.run)
    assert run is not None
    return coins, records(run, "g")


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("changes", [(), (0,), (2,), (3, 4, 5), (4, 9, 12, 15), *((at,) for at in range(5, 22, 2))])
async def test_masks_versions_and_logprobs_are_those_of_the_draws(changes: tuple[int, ...], sleeps: bool) -> None:
    coins, made = await rolled(changes, sleeps)
    found: Counter[SEGMENT] = Counter()
    for record in made:
        assert len(record.logprobs) == len(record.tokens)
        for segment in record.segments:
            for place in range(segment.start, segment.end):
                context, token = record.tokens[:place], record.tokens[place]
                kept = [each for each in context if each != END]  # the next turn does not repeat it
                behaviour = distribution(segment.policy, kept)[token]
                assert record.logprobs[place] == math.log(behaviour)
                target = distribution(coins.version, kept)[token]
                weight = math.exp(math.log(target) - record.logprobs[place]) if target else 0.0
                assert weight == pytest.approx(target / behaviour)
                assert weight == pytest.approx(1.0) or segment.policy < coins.version
                found[tuple(kept), token, segment.policy] += 1
    turns_ends = {key: count for key, count in coins.drawn.items() if key[1] == END and key not in found}
    assert coins.drawn - Counter(turns_ends) == found, "each draw is in one mask, once"
    assert coins.version == len(changes)
    assert {version for record in made for version in record.versions} <= set(range(len(changes) + 1))


async def test_sleep_without_new_weights_changes_nothing() -> None:
    _, undisturbed = await rolled(())
    coins, made = await rolled((3, 8, 14), sleeps=True, updates=False)
    assert coins.version == 0 and len(made) == len(undisturbed)
    for record, other in zip(made, undisturbed, strict=True):
        assert (record.tokens, record.mask, record.logprobs) == (other.tokens, other.mask, other.logprobs)
        assert record.versions == (0,), "its old draws are of the same weights"
