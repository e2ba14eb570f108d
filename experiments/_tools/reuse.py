"""Plans whose prompts share much, and how many of their tokens are computed twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from plait import AsyncOrchestrator, Join, ModelCall, Plan, Sampling, Step
from plait.core.ops import Ref, Text

__all__ = ["BLOCK", "WORDS", "WORKLOADS", "measured", "ratio", "threads", "turns", "votes"]

BLOCK = 32
WORDS = [str(n) for n in range(128)]


def _prefix(rng: random.Random, tokens: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(tokens))


def votes(seed: int) -> Plan:
    """Sixteen samples of one long prompt."""
    prompt = f"{_prefix(random.Random(seed), 200)} <go>"
    names = [f"s{i}" for i in range(16)]
    steps = [
        Step(name=name, op=ModelCall(prompt=prompt, sampling=Sampling(max_tokens=24, temperature=1.0, seed=i)))
        for i, name in enumerate(names)
    ]
    return Plan(steps=(*steps, Step(name="vote", op=Join(), needs=tuple(names))), output="vote")


def threads(seed: int) -> Plan:
    """A parent, eight children that continue it, a join, the parent again, eight more children."""
    first = ModelCall(prompt=f"{_prefix(random.Random(seed), 150)} <go>", sampling=Sampling(max_tokens=40))
    steps = [Step(name="parent-1", op=first)]
    for turn in (1, 2):
        names = [f"child-{turn}-{i}" for i in range(8)]
        for i, name in enumerate(names):
            op = ModelCall(prompt=f" <child> {i} <go>", after=f"parent-{turn}", sampling=Sampling(max_tokens=32))
            steps.append(Step(name=name, op=op))
        steps.append(Step(name=f"join-{turn}", op=Join(), needs=tuple(names)))
        told = (Text(text=" <join> "), Ref(step=names[0]), Text(text=" <go>"))
        go_on = ModelCall(prompt=told, after=f"parent-{turn}", sampling=Sampling(max_tokens=40))
        steps.append(Step(name=f"parent-{turn + 1}", op=go_on, needs=(f"join-{turn}",)))
    return Plan(steps=tuple(steps), output=steps[-1].name)


def turns(seed: int) -> Plan:
    """Six turns of a conversation, each after the one before, the last of three branches carried on."""
    steps: list[Step] = []
    before: str | None = None
    rng = random.Random(seed)
    for turn in range(6):
        prompt = f" {_prefix(rng, 60)} <go>"
        names = [f"t{turn}-{i}" for i in range(3)]
        for i, name in enumerate(names):
            sampling = Sampling(max_tokens=40, temperature=1.0, seed=i)
            needs = (f"pick-{turn - 1}",) if turn else ()
            steps.append(Step(name=name, op=ModelCall(prompt=prompt, after=before, sampling=sampling), needs=needs))
        steps.append(Step(name=f"pick-{turn}", op=Join(), needs=tuple(names)))
        before = names[-1]
    return Plan(steps=tuple(steps), output=steps[-1].name)


WORKLOADS = {"votes": votes, "threads": threads, "turns": turns}


async def measured(orchestrator: AsyncOrchestrator, plans: Sequence[Plan]) -> float:
    """Return tokens computed ÷ unique tokens for some plans run side by side."""
    seen: list[Any] = []
    driver = orchestrator._driver
    assert driver is not None

    def watch(event: Any, machine: Any, actions: Any) -> None:
        if event.kind == "succeeded" and event.result.prompt_ids:
            seen.append(event.result)

    driver.watchers.append(watch)
    room = asyncio.Semaphore(6)

    async def one(plan: Plan) -> None:
        async with room:
            answer = await orchestrator.run("x", plan=plan)
            assert answer.status == "done", answer.failure

    try:
        await asyncio.gather(*(one(plan) for plan in plans))
    finally:
        driver.watchers.remove(watch)
    return ratio(seen)


def ratio(results: Sequence[Any]) -> float:
    """Return prompt tokens computed ÷ those that one engine with an endless cache would compute.

    The latter: every token of the trie of whole prompts that no earlier prompt or output covers, the last block of a
    prompt being computed anyhow. Counted by token, over prompts in the order in which they ended.
    """
    known: set[int] = set()
    needed = computed = 0
    for result in sorted(results, key=lambda each: len(each.prompt_ids)):
        ids = result.prompt_ids
        key, covered = 0, 0
        for at in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = hash((key, ids[at : at + BLOCK]))
            if key in known:
                covered = at + BLOCK
            known.add(key)
        needed += len(ids) - min(covered, (len(ids) - 1) // BLOCK * BLOCK)
        computed += result.usage.prompt - result.usage.cached
        key, whole = 0, (*ids, *result.token_ids)
        for at in range(0, len(whole) - BLOCK + 1, BLOCK):
            key = hash((key, whole[at : at + BLOCK]))
            known.add(key)
    return computed / needed
