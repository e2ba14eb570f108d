"""How do coverage, votes and best-of-n grow with the number of samples, on tasks from outside this project?

SmolLM2-135M-Instruct answers problems of Reasoning Gym 64 times each, without working them out; the families' own
verifiers grade. What it wrote is kept; the curves are worked out when the page is written.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from zlib import crc32

from plait.core.flow import Context
from plait.core.ops import Plugin
from plait.core.sampling import StructuredOutput
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.models import folder_of
from plait_bench.tasks.data_sets import ReasoningGym

from .._tools.command import Given, command
from .page import page_of

__all__ = ["CANDIDATES", "FAMILIES", "SAMPLES", "main", "page", "read", "sampled"]

SAMPLES = 64
TEMPERATURE = 0.7
CANDIDATES = (
    "letter_counting", "gcd", "chain_sum", "aiw", "count_bits", "number_sequence", "leg_counting", "lcm",
    "self_reference", "largest_island", "gsm_symbolic", "basic_arithmetic", "simple_equations",
)  # fmt: skip
FAMILIES: tuple[str, ...] = ("letter_counting", "largest_island", "number_sequence", "gsm_symbolic")
"""Those of the candidates in which any of 64 answers to four other problems was right: 8, 9, 2 and 2 %."""
CHOSEN_ON, CHOSEN_SEED, SEED = 4, 1, 2
_TASK = Plugin(name="plain")
_NUMBER = StructuredOutput(kind="regex", spec="-?[0-9]{1,5}")
"""What the engine allows: left free, this model writes no answer that can be read."""


async def ask_all(given: Given, kept: Path, families: tuple[str, ...]) -> None:
    """Ask what has not been asked yet; each row is written when it is there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["family"], row["part"], row["place"]) for row in read(kept)}
    todo: list[tuple[str, str, int, str, Any]] = []
    if given.only == ("choose",):
        for family in CANDIDATES:
            rows = ReasoningGym.drawn(CHOSEN_ON, CHOSEN_SEED, set=family)
            todo += [(family, "choose", place, *row) for place, row in enumerate(rows)]
    else:
        drawn = {family: ReasoningGym.drawn(given.problems, SEED, set=family) for family in families}
        for place in range(given.problems):  # so that all families have as many, wherever this is stopped
            todo += [(family, "report", place, *drawn[family][place]) for family in families]
    queue = iter([each for each in todo if each[:3] not in done])
    config = given.common.load().model_copy(
        update={"model": folder_of("smollm2"), "worker": "engine", "journal": "off"}
    )
    async with AsyncOrchestrator(config=config) as orchestrator:
        with kept.open("a", encoding="utf-8") as out:

            async def work() -> None:
                for family, part, place, text, entry in queue:
                    row = await sampled(orchestrator, text, 16 if part == "choose" else SAMPLES)
                    about = {"family": family, "part": part, "place": place, "want": str(entry["answer"])}
                    out.write(json.dumps({**about, **row, "load": round(os.getloadavg()[0], 1)}) + "\n")
                    out.flush()

            await asyncio.gather(*(work() for _ in range(given.concurrency)))


async def sampled(orchestrator: AsyncOrchestrator, text: str, count: int) -> dict[str, Any]:
    """Return the answers to one problem, with the mean log-probability of each."""
    said: list[tuple[str, float | None]] = []

    async def ask(ctx: Context, question: str) -> Any:
        how: Any = {"temperature": TEMPERATURE, "max_tokens": 8, "form": _NUMBER, "logprobs": 1}
        lines = [ctx.think(question, **how) for _ in range(count)]
        for line in await ctx.gather(*lines):
            said.append((line.text.strip(), line.logprob))
        return ctx.answer("sampled")

    asked = f"{json.loads(text)['question']}\nAnswer with the number alone."
    seed = crc32(asked.encode())  # one for all would make a draw lucky or not for many problems at once
    answer = await orchestrator.run(asked, task=_TASK, planner=ask, policies=[], seed=seed)
    usage = answer.usage
    return {
        "answers": [each for each, _ in said],
        "logprobs": [None if each is None else round(each, 3) for _, each in said],
        "tokens": usage.completion, "prompt": usage.prompt, "cached": usage.cached, "seconds": round(answer.seconds, 2),
        "seed": seed,
    }  # fmt: skip


def read(kept: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept.is_file() else []


def run(given: Given) -> str:
    """Ask what has not been asked yet, write the page, and return it."""
    kept = given.records / "rows.jsonl"
    if not given.report:
        asyncio.run(ask_all(given, kept, FAMILIES))
    return f"{len(read(kept))} rows" if given.collect else given.write(page(kept))


def page(kept: Path) -> str:
    """Return the page of rows: those in `kept`, or, without any, those beside this file."""
    return page_of(read(kept if kept.is_file() else Path(__file__).parent / "data" / "rows.jsonl"), graded)


def graded(family: str, place: int, part: str, answers: list[str]) -> list[bool]:
    """Return which answers the family's verifier takes for right."""
    import reasoning_gym

    count, seed = (CHOSEN_ON, CHOSEN_SEED) if part == "choose" else (place + 1, SEED)
    dataset = reasoning_gym.create_dataset(family, size=count, seed=seed)
    entry = dataset[place]
    return [dataset.score_answer(answer=each, entry=entry) >= 1.0 if each else False for each in answers]


def main() -> None:
    """Ask what has not been asked yet, and write the page."""
    command("repeated_sampling", run, problems=100)
