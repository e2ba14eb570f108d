"""Does an adapter of rank 8 teach a model of 135 million parameters how many calls a question wants?

Questions of the Berkeley Function Calling Leaderboard that want two or more calls, put to SmolLM2-135M-Instruct by the
planner `llmcompiler` and its grammar of plans: as it is, and with the adapter of `training/calls`, which was trained on
questions that were made up. Graded by the leaderboard's own checker.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from plait.core.ops import Plugin
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.models import folder_of
from plait_bench.environments.bfcl import BfclEnvironment
from plait_bench.tasks.data_sets import Bfcl
from training.calls.prompts import TEMPLATE

from .._tools.command import Given, command
from .._tools.plan_prompt import PLAN
from .page import page_of

__all__ = ["CATEGORIES", "WAYS", "main", "questions"]

ADAPTER = Path("training/calls/adapter")
CATEGORIES = ("parallel", "parallel_multiple")
READ = {"parallel": (17, 62, 63, 118), "parallel_multiple": (17, 62, 63, 118)}
"""Questions that were read while the made-up ones were written: none of them is asked."""
SEED = 11
TOKENS = 200
WAYS = {"examples": ("smollm2", PLAN), "adapter": ("calls", TEMPLATE), "short": ("smollm2", TEMPLATE)}
"""By way: the name of the model that answers, and the template of the plan."""


def questions(category: str, count: int) -> list[tuple[str, Any]]:
    """Return texts and right calls of `count` questions: first those that `experiments/function_calls` reports, in its
    order, then those on which the prompt of the model as it is was chosen."""
    drawn = [pair for pair in Bfcl.drawn(1000, SEED, set=category) if _number(pair[0]) not in READ[category]]
    return sorted(drawn, key=lambda pair: _number(pair[0]) < 60)[:count]


def _number(text: str) -> int:
    return int(str(json.loads(text)["id"]).rpartition("_")[2])


async def ask(orchestrator: AsyncOrchestrator, way: str, text: str) -> dict[str, Any]:
    """Return the record of one answer."""
    model, template = WAYS[way]
    place = BfclEnvironment(text=text)
    how: Any = {"answer_from": "last-task", "rounds": 1, "repairs": 0, "joiner": {"max_tokens": 1},
                "plan": {"max_tokens": TOKENS, "template": template}}  # fmt: skip
    answer = await orchestrator.run(
        text, task=Plugin(name="bfcl", options={"listed": False}), planner=Plugin(name="llmcompiler", options=how),
        model=model, tools=place.tools(), policies=[],
    )  # fmt: skip
    made = [{name: args} for call in place._made for name, args in call.items()]  # pyright: ignore[reportPrivateUsage]
    wrong = {} if answer.failure is None else {"failure": str(answer.failure)[:200]}
    return {"calls": made, "tokens": answer.usage.completion, "prompt": answer.usage.prompt,
            "path": answer.critical_path_tokens, **wrong}  # fmt: skip


async def ask_all(given: Given, kept: Path) -> None:
    """Ask what has not been asked yet, a question in all ways before the next."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["id"], row["way"]) for row in read(kept)}
    columns = [[(category, *pair) for pair in questions(category, given.problems)] for category in CATEGORIES]
    todo = [
        (category, way, text)
        for row in zip(*columns, strict=True) for category, text, _ in row
        for way in WAYS
        if (json.loads(text)["id"], way) not in done and (not given.only or way in given.only)
    ]  # fmt: skip
    worker = given.common.worker or "engine"
    adapters = {"calls": str(ADAPTER)} if worker == "engine" else {}
    config = given.common.load().model_copy(
        update={"model": folder_of("smollm2"), "worker": worker, "journal": "off", "adapters": adapters}
    )
    queue = iter(todo)
    async with AsyncOrchestrator(config=config) as orchestrator:
        with kept.open("a", encoding="utf-8") as out:

            async def work() -> None:
                for category, way, text in queue:
                    row = {"id": json.loads(text)["id"], "category": category, "way": way}
                    row |= await ask(orchestrator, way, text)
                    out.write(json.dumps(row | {"load": round(os.getloadavg()[0], 1)}, ensure_ascii=False) + "\n")
                    out.flush()

            await asyncio.gather(*(work() for _ in range(given.concurrency)))


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


DATA = Path(__file__).parent / "data"


def page(kept: Path) -> str:
    """Return the page of rows: those in `kept`, or, without any, those beside this file."""
    asked = {
        json.loads(text)["id"]: (text, want) for name in CATEGORIES for text, want in Bfcl.drawn(1000, 0, set=name)
    }
    return page_of(read(kept if kept.is_file() else DATA / "rows.jsonl"), asked, read(DATA / "curve.jsonl"))


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    kept = given.records / "rows.jsonl"
    if not given.report:
        asyncio.run(ask_all(given, kept))
    return f"{len(read(kept))} rows" if given.collect else given.write(page(kept))


def main() -> None:
    """Ask what has not been asked yet, and write the page."""
    command("adapter", run, problems=155)
