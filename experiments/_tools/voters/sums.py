"""Draws the samples of the study `erring-votes`: held-out sums, voters of four levels, on the engine."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import TypedDict

from plait.core.ops import Plugin
from plait.core.record import StepRecord
from plait.runtime.client.answer import StepEvent
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config
from training.arithmetic.generate import draw_sum, is_test_sum

__all__ = ["LEVELS", "SAMPLES", "WINDOW", "Drawn", "Sample", "collect", "read"]

LEVELS = (1, 2, 3, 4)
SAMPLES = 32
"""Of each sum."""
WINDOW = 4
"""Tokens in a group of confidence: a quarter of a sample's length."""
TOP = 20
TOKENS = 64


class Sample(TypedDict):
    """One sample of a sum."""

    text: str
    answer: int | None
    tokens: int
    logprob: float | None
    signals: list[float] | None
    """`confidence`, `tail`, `bottom`, `lowest`, `entropy`."""


class Drawn(TypedDict):
    """The samples of one sum, in order."""

    level: int
    text: str
    samples: list[Sample]


def sums(count: int, seed: int) -> list[str]:
    """Return sums of the test split, all different."""
    rng, found = random.Random(f"{seed}/erring"), dict[str, None]()
    while len(found) < count:
        words = draw_sum(rng)
        if is_test_sum(words):
            found[" ".join(words)] = None
    return list(found)


def read(kept: Path, count: int, seed: int) -> list[Drawn]:
    """Return the samples drawn for the first `count` sums of a seed; a last line that was cut off is left out."""
    lines = kept.read_text(encoding="utf-8").split("\n")[:-1] if kept.is_file() else []
    drawn: list[Drawn] = [json.loads(line) for line in lines]
    wanted = set(sums(count, seed))
    return [each for each in drawn if each["text"] in wanted]


async def collect(config: Config, count: int, kept: Path, at_once: int = 8) -> None:
    """Draw what is missing, `at_once` sums at a time. Every sum is on disk when it is done."""
    have = {(each["level"], each["text"]) for each in read(kept, count, config.seed)}
    todo = [(level, text) for text in sums(count, config.seed) for level in LEVELS if (level, text) not in have]
    if not todo:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    model = str(Path(BUNDLED_MODEL).with_name("arithmetic"))
    config = config.model_copy(update={"model": model, "journal": "off", "cache": None})
    answer = {"temperature": 1, "max_tokens": TOKENS, "logprobs": TOP, "window": WINDOW}
    planner = Plugin(name="sample", options={"n": SAMPLES, "answer": answer, "merge": {"name": "collect"}})
    gate = asyncio.Semaphore(at_once)
    with kept.open("a", encoding="utf-8") as file:
        async with AsyncOrchestrator(config=config) as orchestrator:

            async def draw(level: int, text: str) -> None:
                async with gate:
                    task = Plugin(name="sums", options={"skill": level})
                    seed = config.seed * 1_000_003 + level
                    handle = await orchestrator.submit(text, watch=True, task=task, planner=planner, seed=seed)
                    rows: dict[int, StepRecord] = {}
                    async for news in handle.news():
                        if isinstance(news, StepEvent) and news.record.state == "done":
                            name, _, number = news.record.name.rpartition("-")
                            if name == "sample":
                                rows[int(number)] = news.record
                    await handle
                    bound = orchestrator.plugins.task(task, text)
                    samples = [_sample(bound.extract(str(rows[i].value)), rows[i]) for i in sorted(rows)]
                    if len(samples) == SAMPLES:
                        file.write(json.dumps(Drawn(level=level, text=text, samples=samples)) + "\n")
                        file.flush()

            await asyncio.gather(*(draw(level, text) for level, text in todo))


def _sample(answer: object, row: StepRecord) -> Sample:
    said = row.signals
    signals = None
    if said is not None:
        signals = [said.confidence, said.tail, said.bottom, said.lowest, said.entropy]
    number = answer if isinstance(answer, int) else None
    return Sample(text=str(row.value), answer=number, tokens=row.usage.completion, logprob=row.logprob, signals=signals)
