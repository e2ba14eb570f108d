"""Does a model of 135 million parameters call the right functions, by the form and by the planner?

Questions of the Berkeley Function Calling Leaderboard, put to SmolLM2-135M-Instruct in several ways and graded by the
leaderboard's own checker. What the model wrote is kept; what is made of it is worked out when the page is written.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.models import folder_of
from plait_bench.tasks.data_sets import Bfcl

from .._tools.command import Given, command
from .page import page_of
from .ways import WAYS

__all__ = ["CATEGORIES", "main", "page", "questions"]

CATEGORIES = ("simple_python", "parallel", "parallel_multiple")
OTHERS = 60
"""Questions, the first of each category, on which prompts and settings were chosen: none of them is reported."""
TOGETHER = 5
"""Questions of each category that are asked in all ways before the next."""
SEED = 11


def questions(category: str, count: int) -> list[tuple[str, str, Any]]:
    """Return `(part, text, want)` of `count` questions that are reported, in the order of the seed."""
    drawn = Bfcl.drawn(1000, SEED, set=category)
    rest = [each for each in drawn if _number(each[0]) >= OTHERS]
    return [("report", *each) for each in rest[:count]]


def _number(text: str) -> int:
    return int(str(json.loads(text)["id"]).rpartition("_")[2])


async def ask_all(given: Given, kept: Path) -> None:
    """Ask what has not been asked yet; each row is written when it is there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["id"], row["way"]) for row in read(kept)}
    todo: list[tuple[str, str, str, str, Any]] = []
    columns = [[(category, *each) for each in questions(category, given.problems)] for category in CATEGORIES]
    rows = list(zip(*columns, strict=False))  # so that all categories have as many, wherever this is stopped
    for start in range(0, len(rows), TOGETHER):
        some = [each for row in rows[start : start + TOGETHER] for each in row]
        for way in WAYS:
            if given.only and way not in given.only:
                continue
            for category, part, text, want in some:
                if (json.loads(text)["id"], way) not in done:
                    todo.append((category, part, way, text, want))
    config = given.common.load().model_copy(
        update={"model": folder_of("smollm2"), "worker": "engine", "journal": "off"}
    )
    queue = iter(todo)
    async with AsyncOrchestrator(config=config) as orchestrator:
        with kept.open("a", encoding="utf-8") as out:

            async def work() -> None:
                for category, part, way, text, want in queue:
                    said = await WAYS[way](orchestrator, text, want)
                    row = {"id": json.loads(text)["id"], "category": category, "part": part, "way": way, **said}
                    out.write(json.dumps(row | {"load": round(os.getloadavg()[0], 1)}) + "\n")
                    out.flush()

            await asyncio.gather(*(work() for _ in range(given.concurrency)))


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


DATA = Path(__file__).parent / "data"


def page(kept: Path) -> str:
    """Return the page of rows: those in `kept`, or, without any, those beside this file."""
    drawn = [pair for each in CATEGORIES for pair in Bfcl.drawn(1000, SEED, set=each)]
    asked = {json.loads(text)["id"]: (text, want) for text, want in drawn}
    rows = read(kept if kept.is_file() else DATA / "rows.jsonl")
    return page_of(rows, asked, read(DATA / "another.jsonl"), CATEGORIES)


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    kept = given.records / "rows.jsonl"
    if not given.report:
        asyncio.run(ask_all(given, kept))
    return f"{len(read(kept))} rows" if given.collect else given.write(page(kept))


def main() -> None:
    """Ask what has not been asked yet, and write the page."""
    command("function_calls", run, problems=60)
