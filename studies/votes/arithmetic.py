"""Study `arithmetic`: samples by spread codes (`sample:arithmetic=true`) against independent ones, on the engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from plait.core.ops import Plugin
from plait.core.record import StepRecord
from plait.runtime.client.answer import StepNews
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import BUNDLED_MODEL, Config
from plait.runtime.plugins.loader import Plugins

from ..statistics import difference, mean
from .sums import LEVELS, TOKENS, sums

__all__ = ["REPEATS", "SIZES", "Drawn", "collect", "page_of", "read"]

SIZES = (4, 8, 16, 32)
REPEATS = 4
"""Votes of each size for each sum, with seeds of their own: their spread is what the codes are to make smaller."""


class Drawn(TypedDict):
    """One vote's samples."""

    level: int
    text: str
    size: int
    codes: bool
    repeat: int
    answers: list[int | None]


def _votes(count: int, seed: int) -> list[tuple[int, str, int, bool, int]]:
    """Return the votes to draw. Of independent samples the largest vote is drawn, and its beginnings are the others."""
    kinds = [*((size, True) for size in SIZES), (SIZES[-1], False)]
    places = [(level, text) for text in sums(count, seed) for level in LEVELS]
    return [(*place, *kind, repeat) for place in places for kind in kinds for repeat in range(REPEATS)]


def read(kept: Path) -> list[Drawn]:
    """Return what is drawn; a last line that was cut off is left out."""
    lines = kept.read_text(encoding="utf-8").split("\n")[:-1] if kept.is_file() else []
    return [json.loads(line) for line in lines]


async def collect(config: Config, count: int, kept: Path, at_once: int = 12) -> None:
    """Draw what is missing. Every vote is on disk when it is done."""
    have = {(each["level"], each["text"], each["size"], each["codes"], each["repeat"]) for each in read(kept)}
    todo = [each for each in _votes(count, config.seed) if each not in have]
    if not todo:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    model = str(Path(BUNDLED_MODEL).with_name("arithmetic"))
    config = config.model_copy(update={"model": model, "journal": "off", "cache": None})
    gate = asyncio.Semaphore(at_once)
    with kept.open("a", encoding="utf-8") as file:
        async with AsyncOrchestrator(config=config) as orchestrator:

            async def draw(level: int, text: str, size: int, codes: bool, repeat: int) -> None:
                async with gate:
                    task = Plugin(name="sums", options={"level": level})
                    planner = (
                        f"sample:n={size},temperature=1,max_tokens={TOKENS},merge=collect,arithmetic={codes}".lower()
                    )
                    seed = config.seed * 1_000_003 + 101 * repeat + size
                    handle = await orchestrator.submit(text, watch=True, task=task, planner=planner, seed=seed)
                    rows: dict[int, StepRecord] = {}
                    async for news in handle.news():
                        if isinstance(news, StepNews) and news.record.state == "done":
                            name, _, number = news.record.name.rpartition("-")
                            if name == "sample":
                                rows[int(number)] = news.record
                    await handle
                    bound = orchestrator.plugins.task(task, text)
                    said = [bound.extract(str(rows[i].value)) for i in sorted(rows)]
                    if len(said) == size:
                        answers = [each if isinstance(each, int) else None for each in said]
                        drawn = Drawn(level=level, text=text, size=size, codes=codes, repeat=repeat, answers=answers)
                        file.write(json.dumps(drawn) + "\n")
                        file.flush()

            await asyncio.gather(*(draw(*each) for each in todo))


def page_of(drawn: Sequence[Drawn], command: str) -> str:
    """Return the page as Markdown."""
    plugins = Plugins()
    by_sum: dict[tuple[int, str], list[Drawn]] = {}
    for each in drawn:
        by_sum.setdefault((each["level"], each["text"]), []).append(each)
    full = len(SIZES) * REPEATS + REPEATS
    whole = {place: votes for place, votes in by_sum.items() if len(votes) == full}
    lines = [
        "# Arithmetic sampling among voters that err", "",
        "Do samples whose codes are spread evenly (`sample:arithmetic=true`) make a vote better, or steadier, than as "
        "many independent ones?", "",
        f"`{command}`", "",
        f"{len(whole)} sums and levels of the bundled model `arithmetic` (temperature 1, on the engine), {REPEATS} "
        "votes of each size with seeds of their own. *Spread*: standard deviation of the share of right samples over "
        "the votes of one sum, of which independent samples have sqrt(p (1 - p) / n); mean over sums. *Distinct*: "
        "different answers in a vote. *Solved*: by the majority, the earliest of equals; *any*: at least one right. "
        "Differences are paired by sum, 95 % intervals, sums drawn anew.", "",
        "| samples | spread, independent | spread, codes | codes ÷ independent | distinct | any right | solved | "
        "change in any | change in solved |", "|---" * 9 + "|",
    ]  # fmt: skip
    for size in SIZES:
        found = [
            [_measured(votes, size, codes, plugins.task(Plugin(name="sums", options={"level": level}), text).verify)
             for codes in (False, True)]
            for (level, text), votes in whole.items()
        ]  # fmt: skip
        table = np.array(found)  # of shape (sums, 2, 4)
        plain, codes = table[:, 0], table[:, 1]
        ratio = codes[:, 0].mean() / max(1e-9, plain[:, 0].mean())
        cells = (
            str(size), f"{plain[:, 0].mean():.4f}", f"{codes[:, 0].mean():.4f}", f"{ratio:.2f}",
            f"{plain[:, 1].mean():.1f} → {codes[:, 1].mean():.1f}",
            f"{mean(plain[:, 2]).percent()} → {mean(codes[:, 2]).percent()}",
            f"{mean(plain[:, 3]).percent()} → {mean(codes[:, 3]).percent()}",
            difference(codes[:, 2], plain[:, 2]).points(), difference(codes[:, 3], plain[:, 3]).points(),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measured(votes: Sequence[Drawn], size: int, codes: bool, verify: object) -> tuple[float, float, float, float]:
    """Return spread, distinct answers, share of votes with a right one, and share solved, of a sum."""
    assert callable(verify)
    drawn = [each["answers"][:size] for each in votes if each["codes"] == codes and (not codes or each["size"] == size)]
    shares = [float(np.mean([verify(answer) is True for answer in answers])) for answers in drawn]
    solved: list[bool] = []
    for answers in drawn:
        counts = Counter(answer for answer in answers if answer is not None)
        solved.append(bool(counts) and verify(counts.most_common(1)[0][0]) is True)
    distinct = float(np.mean([len(set(answers)) for answers in drawn]))
    return (
        float(np.std(shares, ddof=1)),
        distinct,
        float(np.mean([share > 0 for share in shares])),
        float(np.mean(solved)),
    )
