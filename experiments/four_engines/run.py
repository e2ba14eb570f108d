"""A shared beginning on four real engines: what does `affinity` save beside `least-loaded`?

Requests that share headers of 2,016 tokens, on four real engines in Ray: `affinity` beside `least-loaded`.

    python -m experiments four_engines [--rounds 5] [--seconds 480] [--only NAME] [--policy NAME] [--kv-events]

The engines are vLLM on CPUs with the bundled model, whose context is widened to 4,096 tokens (what it writes does not
matter here), one compute thread, 32 places and a cache of 16,000 tokens each, so that seven headers fit into one. They
share the cores there are, so that what one computes again is time that the others do not have. A round: 200 requests at
once, each a header, 50 tokens of its own and up to 64 tokens of answer; every round has new headers, and all contenders
get requests of the same kind, in turn. Prompt tokens computed ÷ unique, tokens generated a second, and seconds of CPU
of all engines' processes a request, by which the load of the machine matters less.

`turns`: eight runs, each a vote of eight samples behind a header of its own; when all have ended, eight other questions
behind the same headers, three times in all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from plait import AsyncOrchestrator, Config, Join, ModelCall, Plan, Sampling, Step
from plait.core.ops import Plugin
from plait.workers._shared.resources import usable_cores
from plait.workers.ray import pool

from .._tools.measure import interleave, spread
from .._tools.model import widened
from .._tools.prompts import BYTES_A_TOKEN, unique, words

ENGINES, SLOTS, CACHE, BLOCK = 4, 32, 16_000, 32
HEADER, OWN, ANSWER, REQUESTS = 63 * BLOCK, 50, 64, 200
CASES = {"20 headers": 20, "8 headers": 8, "one header": 1, "no header": 0, "turns": 8}
POLICIES = ("affinity", "least-loaded")


@dataclass
class Measurement:
    """What a round came to."""

    computed: int
    unique: int
    generated: int
    seconds: float
    cpu: float
    requests: int

    @property
    def ratio(self) -> float:
        """Prompt tokens computed ÷ unique."""
        return self.computed / self.unique

    @property
    def rate(self) -> float:
        """Tokens generated a second."""
        return self.generated / self.seconds


def prompts(headers: int, rng: random.Random) -> list[str]:
    """Return the prompts of a round, mixed. Without headers each has a long part of its own."""
    if not headers:
        return [words(rng, OWN + 512) for _ in range(REQUESTS)]
    heads = [words(rng, HEADER) for _ in range(headers)]
    texts = [f"{heads[i % headers]} {words(rng, OWN)}" for i in range(REQUESTS)]
    rng.shuffle(texts)
    return texts


def think(text: str, seed: int) -> ModelCall:
    return ModelCall(prompt=text, sampling=Sampling(max_tokens=ANSWER, temperature=1.0, seed=seed))


def single(text: str, seed: int) -> Plan:
    """One answer."""
    return Plan(steps=(Step(name="a", op=think(text, seed)),), output="a")


def vote(text: str, seed: int, width: int = 8) -> Plan:
    """Samples of one prompt."""
    names = [f"s{i}" for i in range(width)]
    steps = [Step(name=name, op=think(text, seed + i)) for i, name in enumerate(names)]
    return Plan(steps=(*steps, Step(name="vote", op=Join(), needs=tuple(names))), output="vote")


class Engines:
    """Four engines and who places work on them."""

    def __init__(self, orchestrator: AsyncOrchestrator) -> None:
        self._orchestrator = orchestrator
        below = psutil.Process().children(recursive=True)
        self._processes = [each for each in below if _said(each).startswith("ray::Host")]
        assert len(self._processes) == ENGINES, [_said(each) for each in below]

    def cpu(self) -> float:
        """Return the seconds of CPU that the engines' processes have used."""
        return sum(sum(each.cpu_times()[:2]) for each in self._processes)

    async def play(self, waves: list[list[Plan]], texts: list[str], policy: str) -> Measurement:
        """Run the plans of each wave at once, one wave after another; `texts`: all their prompts."""
        cpu, began = self.cpu(), time.perf_counter()
        computed = generated = 0
        for plans in waves:
            runs = (self._orchestrator.run("x", plan=plan, policies=(Plugin(name=policy),)) for plan in plans)
            for answer in await asyncio.gather(*runs):
                assert answer.status == "done", answer.failure
                computed += answer.usage.prompt - answer.usage.cached
                generated += answer.usage.completion
        seconds = time.perf_counter() - began
        thinks = sum(step.op.kind == "think" for plans in waves for plan in plans for step in plan.steps)
        return Measurement(computed, unique(texts), generated, seconds, self.cpu() - cpu, thinks)

    async def case(self, name: str, policy: str, number: int) -> Measurement:
        """Play a round of a case, with headers of its own: the second policy would find those of the first cached."""
        headers, rng = CASES[name], random.Random(f"{name}, {policy}, {number}")
        if name != "turns":
            texts = prompts(headers, rng)
            return await self.play([[single(text, i) for i, text in enumerate(texts)]], texts, policy)
        heads = [words(rng, HEADER) for _ in range(headers)]
        waves, texts = [], []
        for _ in range(3):
            rng.shuffle(heads)
            asked = [f"{head} {words(rng, OWN)}" for head in heads]
            waves.append([vote(text, 8 * i) for i, text in enumerate(asked)])
            texts += asked
        return await self.play(waves, texts, policy)


def _said(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def measured(
    names: list[str], policies: list[str], rounds: int, seconds: float, events: bool = False
) -> dict[str, dict[str, list[Measurement]]]:
    """Return the result of each case with each policy. `events`: the engines tell what their caches hold."""
    found: dict[str, dict[str, list[Measurement]]] = {name: {policy: [] for policy in policies} for name in names}
    with widened() as model:
        options: dict[str, Any] = {
            "model": str(model), "slots": SLOTS, "engine_args": {"block_size": BLOCK}, "threads": 1,
            "kv_events": events, "kv_cache_memory_bytes": CACHE * BYTES_A_TOKEN,
        }  # fmt: skip
        # each engine on one core: with two cores, two engines on each
        cores = [core for _ in range(ENGINES) for core in usable_cores()][:ENGINES]
        workers = pool(ENGINES, options=options, num_cpus=0.25, cores=cores)
        async with AsyncOrchestrator(workers=workers, config=Config(journal="off")) as orchestrator:
            engines = Engines(orchestrator)
            made: dict[str, Callable[[], Awaitable[float]]] = {}
            for name in names:
                for policy in policies:

                    async def one(name: str = name, policy: str = policy) -> float:
                        told = found[name][policy]
                        told.append(await engines.case(name, policy, len(told)))
                        last = told[-1]
                        sys.stderr.write(
                            f"{name}, {policy}: {last.ratio:.2f} computed, {last.rate:.0f} tokens/s, "
                            f"{last.cpu / last.requests * 1000:.0f} ms CPU a request, {last.seconds:.1f} s\n"
                        )
                        return last.rate

                    made[f"{name}, {policy}"] = one
            await interleave(made, rounds, 0, seconds)
    return found


def table(found: dict[str, dict[str, list[Measurement]]]) -> str:
    """Return the table of a page. The ratios are those to the last policy, round by round."""
    lines = [
        "| load | policy | computed ÷ unique | tokens/s | ÷ the last policy's | CPU a request | ÷ the last policy's |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, policies in found.items():
        base = list(policies.values())[-1]
        for policy, told in policies.items():
            read, rate = spread([each.ratio for each in told]), spread([each.rate for each in told])
            cpu = spread([1000 * each.cpu / each.requests for each in told])
            gain = spread([a.rate / b.rate for a, b in zip(told, base, strict=True)])
            less = spread([a.cpu / a.requests / (b.cpu / b.requests) for a, b in zip(told, base, strict=True)])
            lines.append(f"| {name} | `{policy}` | {read} | {rate} | {gain} | {cpu} ms | {less} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m experiments four_engines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no round begins that would end later")
    parser.add_argument("--only", action="append", choices=CASES, help="a case; may be given several times")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="of the two; both by default")
    parser.add_argument("--kv-events", action="store_true", help="the engines tell what their caches hold")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write each round's figures here")
    options = parser.parse_args()
    found = asyncio.run(
        measured(
            options.only or list(CASES),
            options.policy or list(POLICIES),
            options.rounds,
            options.seconds,
            options.kv_events,
        )
    )
    if options.json is not None:
        rows = {name: {p: [asdict(t) for t in told] for p, told in by.items()} for name, by in found.items()}
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.stdout.write(table(found) + "\n")
