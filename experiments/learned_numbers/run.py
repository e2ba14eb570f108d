"""Can width, temperature and stop rule be found in journals?

Journals for `plait learn numbers`: puzzles with sixteen whole answers at each temperature, in plain torch.

    python -m experiments learned_numbers --puzzles 500 --folder journals   # goes on where it was

The page says which width, temperature and stop rule are found in them.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch

from plait import AsyncOrchestrator
from plait.planners.votes.sample import Sample
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from training import vocab
from training.shortest import problems

from .._tools.plain import Plain

MODEL = Path("orchestrator/models/countdown")
TEMPERATURES = (0.6, 1.0, 1.4)
PLANNER = "sample:n=16,style=direct,answer.max_tokens=32,merge=best-of"


def there(folder: Path) -> set[tuple[str, float]]:
    """Return the puzzles, with their temperatures, that have a whole run."""
    found: set[tuple[str, float]] = set()
    for path in {entry.path for entry in entries(folder)}:
        ended = {run.run for run in Journal(path).runs() if run.status == "done"}
        for event in Journal(path).events():
            if event.kind == "submitted" and event.run in ended:
                heat = Sample(**event.request.planner.options).answer.temperature
                # A run that leaves the temperature to the model is none of these.
                if heat is not None:
                    found.add((event.request.text, heat))
    return found


async def draw(puzzles: int, seed: int, folder: Path, at_once: int = 16) -> int:
    """Run what has not been run; return how many runs that were."""
    done = there(folder)
    todo = [(text, heat) for text in problems(puzzles, seed) for heat in TEMPERATURES if (text, heat) not in done]
    gate = asyncio.Semaphore(at_once)
    worker = Plain({MODEL.name: MODEL}, vocab)
    worker.slots = 16 * at_once
    journal = folder / f"drawn-{len(done)}.plait"
    async with AsyncOrchestrator(workers=[worker], journal=journal) as orchestrator:

        async def one(text: str, heat: float) -> None:
            async with gate:
                await orchestrator.run(text, task="countdown", planner=f"{PLANNER},answer.temperature={heat}")

        await asyncio.gather(*(one(*each) for each in todo))
    return len(todo)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments learned_numbers", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/experiments/learned-numbers"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    runs = asyncio.run(draw(given.puzzles, given.seed, given.folder))
    print(f"{runs} runs drawn; {len(there(given.folder))} in {given.folder}")
