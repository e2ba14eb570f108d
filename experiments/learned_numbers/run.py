"""Can width, temperature and stop rule be found in journals?

Journals for `plait learn numbers`: puzzles with sixteen whole answers at each temperature, in plain torch.

    python -m experiments learned_numbers --puzzles 500 --folder journals   # resumes where it stopped

    python -m experiments learned_numbers --puzzles 300 --seed 6 --folder other-journals
    python -m experiments learned_numbers --folder journals --check other-journals   # learns, and writes the page
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plait import AsyncOrchestrator
from plait.core.ops import Plugin
from plait.planners.votes.sample import Sample
from plait.runtime.journal.directory import entries
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins
from plait_research.learn.learnable import versions_of
from plait_research.learn.numbers import Replay, drawn, learn
from plait_research.rollouts.store import stored_runs
from training import vocab
from training.shortest import problems

from .._tools.command import Given
from .._tools.plain import Plain
from .._tools.statistics import Estimate, difference, mean, share

MODEL = Path("packages/plait-models/plait_models/models/countdown")
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
                # A run that leaves the temperature to the model is not among these.
                if heat is not None:
                    found.add((event.request.text, heat))
    return found


async def draw(puzzles: int, seed: int, folder: Path, at_once: int = 16) -> int:
    """Run what has not been run; return the number of these runs."""
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


LEARNABLE = (
    {"name": "n", "kind": "number", "value": 8, "low": 1, "high": 16, "whole": True},
    {"name": "answer.temperature", "kind": "choice", "value": 1.0, "choices": [0.6, 1.0, 1.4]},
    {"name": "policy", "kind": "choice", "value": "", "choices": ["", "waves:n=4", "waves:n=1"]},
)
PRICE = 0.0005
REPLAYED = "sample:style=direct,answer.max_tokens=32,merge=best-of,early=true"


def learned(folder: Path, other: Path) -> Iterator[dict[str, Any]]:
    """Yield what `plait learn numbers` does with the journals of a folder: what it found, and what the values in force
    and the best ones came to on each puzzle of the half that decides, and of another folder."""
    plugins = Plugins()
    questions, others = (
        drawn(stored_runs(entries(place), plugins, lambda error: None)) for place in (folder, other)
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as made:
        declared = Path(made) / "learn.json"
        declared.write_text(json.dumps(LEARNABLE), encoding="utf-8")
        versions = versions_of(declared)
        replay, before = Replay(Plugin.of(REPLAYED), ()), dict(versions.current.values)
        result = learn(versions, replay, questions, price=PRICE, level=0.1, seed=0)
    yield {"questions": result.questions, "tried": result.tried, "replays": result.replays, "best": result.best,
           "outcome": str(result.outcome)}  # fmt: skip
    sides = {"the half that decides": (result.before, result.after),
             "other puzzles": (replay.runs(before, others), replay.runs(result.best, others))}  # fmt: skip
    for side, both in sides.items():
        for values, runs in zip(("in force", "learned"), both, strict=True):
            yield {"side": side, "values": values, "runs": [[float(run.right), run.tokens] for run in runs]}


def page_of(rows: Sequence[dict[str, Any]], puzzles: str) -> str:
    """Return the page as Markdown."""
    best, *sides = rows
    lines = [
        "# Width, temperature and stop rule from journals", "",
        "Can a width, a temperature and a stop rule be found in journals, without a model?", "",
        f"`{puzzles}`", "",
        "The bundled Countdown model guesses whole answers (`style=direct`, some 20 tokens a line, right one time in "
        "ten); the task's verifier picks. Journals: puzzles of the training split, `n=16` at temperature 0.6, 1.0 and "
        "1.4 each, in plain torch, no early stop. What `plait learn numbers` does with them, a right answer worth 1 "
        f"and a token {PRICE}: declared are `n` (1 to 16; 8 in force), the temperature (1.0 in force) and a "
        "policy: none "
        "(in force), `waves:n=4`, `waves:n=1`. `--check` measures the same on other puzzles.",
        "",
        f"{best['questions']} puzzles, {best['tried']} candidates, {best['replays']} replays. The best on the other "
        f"half: `{json.dumps(best['best'])}`; {best['outcome']}.", "",
        "| on | values | puzzles | right | tokens | worth |", "|---" * 6 + "|",
    ]  # fmt: skip
    by = {(row["side"], row["values"]): np.array(row["runs"]) for row in sides}
    for (side, values), runs in by.items():
        worth = _worth(mean(runs[:, 0] - PRICE * runs[:, 1]))
        cells = (side, values, str(len(runs)), share(runs[:, 0]).percent(), mean(runs[:, 1]).number(), worth)
        lines.append(f"| {' | '.join(cells)} |")
    for side in dict.fromkeys(side for side, _ in by):
        old, new = by[side, "in force"], by[side, "learned"]
        more = difference(new[:, 0] - PRICE * new[:, 1], old[:, 0] - PRICE * old[:, 1])
        gained, spent = difference(new[:, 0], old[:, 0]).points(), difference(new[:, 1], old[:, 1]).value
        cells = (side, "learned − in force, paired", str(len(old)), gained, f"{spent:+.0f}", _worth(more))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "95 % intervals, puzzles resampled.", ""])


def _worth(value: Estimate) -> str:
    return f"{value.value:.3f} ({value.low:.3f}–{value.high:.3f})".replace("–-", " to -")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments learned_numbers", description=__doc__)
    parser.add_argument("--puzzles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("build/experiments/learned-numbers"))
    parser.add_argument("--check", type=Path, help="journals of other puzzles: learn, and write the page")
    parser.add_argument(
        "--out", type=Path, default=Path("build/experiments/learned_numbers"), help="folder of the page"
    )
    parser.add_argument("--report", action="store_true", help="run nothing: write the page from the rows beside it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.check is not None or given.report:
        kept = given.out / "records" / "learned.jsonl"
        if given.check is not None and not given.report:
            kept.parent.mkdir(parents=True, exist_ok=True)
            rows = [json.dumps(row) for row in learned(given.folder, given.check)]
            kept.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        place = Given(given.out, kept.parent, name="learned_numbers")
        found = place.rows(kept)
        made_by = "python -m experiments learned_numbers --folder journals --check other-journals"
        print(place.write(page_of([json.loads(line) for line in found.lines], made_by), found))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    runs = asyncio.run(draw(given.puzzles, given.seed, given.folder))
    print(f"{runs} runs drawn; {len(there(given.folder))} in {given.folder}")
