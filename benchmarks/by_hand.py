"""What people write today: votes and spawned threads against an OpenAI server in a few lines of asyncio.

The baselines of `openai_server.py`. Each function solves one puzzle and returns whether it did, and the tokens it had
seen generated at that moment. Kept as short as someone in a hurry would, but not slower than it has to be.
"""

from __future__ import annotations

import asyncio
from typing import Any

from plait.apps.common.problems import Problem, is_right
from plait.planners._shared.seeds import derive

N, WIDTH, MODEL = 8, 8, "countdown"
Ask = Any
"""The `completions.create` of an `openai.AsyncOpenAI`."""


def steps_of(text: str) -> list[str] | None:
    """Return the steps that a text claims."""
    _, hit, claim = text.rpartition("<hit>")
    return [step.replace(" ", "") for step in claim.replace("<end>", "").split(";")] if hit and claim.strip() else None


def head(problem: Problem, word: str, width: int = 8) -> str:
    """Return the prompt of a mode."""
    return f"<{word}> {width} T{problem.target} {' '.join(map(str, sorted(problem.numbers, reverse=True)))} <go>"


async def plain_votes(ask: Ask, problem: Problem, seed: int) -> tuple[bool, int]:
    """n=8 in one request; all of them are waited for."""
    prompt = head(problem, "serial")
    done = await ask(model=MODEL, prompt=prompt, n=N, temperature=1.0, max_tokens=512, seed=seed,
                     extra_body={"skip_special_tokens": False})  # fmt: skip
    right = any(is_right(problem, steps_of(choice.text)) for choice in done.choices)
    lengths = [(len(choice.text.split()), is_right(problem, steps_of(choice.text))) for choice in done.choices]
    first = min((length for length, good in lengths if good), default=10**9)
    return right, sum(min(length, first) for length, _ in lengths)


async def early_votes(ask: Ask, problem: Problem, seed: int) -> tuple[bool, int]:
    """Eight requests side by side; the rest are given up as soon as one is right. They are drawn with the seeds that
    the planner `sample` gives its samples, since a luckier draw is no faster client."""
    seen = [0] * N

    async def one(i: int) -> bool:
        text = ""
        stream = await ask(model=MODEL, prompt=head(problem, "serial"), temperature=1.0, max_tokens=512,
                           seed=derive(seed, "sample", i + 1), stream=True,
                           extra_body={"skip_special_tokens": False})  # fmt: skip
        async with stream:
            async for chunk in stream:
                text += chunk.choices[0].text
                seen[i] = len(text.split())
        return is_right(problem, steps_of(text))

    tasks = [asyncio.create_task(one(i)) for i in range(N)]
    try:
        for task in asyncio.as_completed(tasks):
            if await task:
                return True, sum(seen)
        return False, sum(seen)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def spawn_join(ask: Ask, problem: Problem, seed: int) -> tuple[bool, int]:
    """The parent spawns, children search side by side, a right one ends it; otherwise the parent goes on."""
    tokens, context = 0, head(problem, "parent", WIDTH)

    async def say(prompt: str, limit: int, stop: str) -> str:
        nonlocal tokens
        done = await ask(model=MODEL, prompt=prompt, temperature=0.0, max_tokens=limit, stop=[stop],
                         extra_body={"skip_special_tokens": False, "include_stop_str_in_output": True})  # fmt: skip
        tokens += done.usage.completion_tokens
        return done.choices[0].text

    for _ in range(4):
        text = await say(context, 160, "<wait>")
        context += text
        if "<spawn>" not in text:
            return is_right(problem, steps_of(text)), tokens
        items = [item.strip() for item in text.split("<spawn>")[1].replace("<wait>", "").split(";")]
        headers = [f" <child> T{problem.target} " + " ".join(map(str, sorted(
            [int(item.split("=")[1].split("|")[0]), *map(int, item.split("|")[1].split())], reverse=True)))
            + " <go>" for item in items]  # fmt: skip
        tasks = {asyncio.create_task(say(context + header, 240, "<end>")): i for i, header in enumerate(headers)}
        found = ["<none>"] * len(items)
        for task in asyncio.as_completed(tasks):
            text = await task
            steps = steps_of(text)
            if steps and is_right(problem, [items[0].split("|")[0].replace(" ", ""), *steps]):
                return True, tokens
            for item in items if steps else ():
                first = item.split("|")[0].strip()
                if steps and is_right(problem, [first.replace(" ", ""), *steps]):
                    for other in tasks:
                        other.cancel()
                    return True, tokens
        context += " <join> " + " | ".join(found) + " <go>"
    return False, tokens
