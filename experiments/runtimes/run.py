"""How long do n samples take, n = 2 to 32, predicted from other puzzles?

How long n samples of a puzzle take: predicted from runs of other puzzles, against the engine.

    python -m experiments runtimes --folder FOLDER [--minutes 4] [--report]

Recorded are puzzles by 32 samples, each puzzle alone on the engine. From these come the lengths of each puzzle's
samples and which of them were right, and the fit of `plait simulate calibrate`: what a step takes by the number of
samples still being written. For other puzzles and n = 2, 4, 8, 16, 32 three times are predicted: until the first ends,
until more than half have, until one is right. The recorded puzzles are averaged, as the next one may be like any.
Then these are measured. Beside the prediction stand two that leave something out: `one pace` takes a step to last as
long as that of one sample, though samples slow one another down; `one lot` takes the samples of all puzzles for draws
of one distribution, though those of one puzzle are alike.

Times are in seconds of the core at its full speed that no other process had (see `_tools/core_time.py`). Puzzles are
done one after another until the minutes are over; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from plait import AsyncOrchestrator
from plait.apps.common.problems import CountdownProblem, draw
from plait.core.ops import Plugin
from plait.core.prompt import Prompt
from plait.core.runtime_distribution import Branches, Prediction, Problems, Step
from plait.planners.votes.sample import Sample
from plait.runtime.client.config import Config
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins
from plait.runtime.simulation.calibrate import RecordedAttempt, fit, recorded

from .._tools.core_time import EVERY, CoreTime, Yardstick

WIDTHS = (2, 4, 8, 16, 32)
MOST, TOKENS = 32, 256
RECORDED = 40
"""Puzzles that are recorded."""
SEED, OTHERS = 51, 7_051
"""Of the puzzles that are recorded, and of those that are measured."""


class Ended(NamedTuple):
    """One sample, seconds after its run had been sent."""

    at: float
    tokens: int
    right: bool


class Measured(NamedTuple):
    """A figure of several runs."""

    mean: float
    low: float
    high: float


def done(folder: Path) -> set[tuple[str, int, int]]:
    """Return the runs of earlier parts."""
    parts = [json.loads(path.read_text())["runs"] for path in sorted(folder.glob("part-*.json"))]
    return {(kind, puzzle, n) for runs in parts for _, kind, puzzle, n in runs}


async def work(folder: Path, number: int, minutes: float, had: set[tuple[str, int, int]]) -> None:
    """Run puzzles on a new engine until the minutes are over, the recorded ones first."""
    journal, until = folder / f"part-{number}.jsonl", time.monotonic() + 60 * minutes
    todo = [("recorded", puzzle, MOST) for puzzle in range(RECORDED)]
    for puzzle in range(400):
        todo += [("measured", puzzle, n) for n in random.Random(puzzle).sample(WIDTHS, len(WIDTHS))]
    made: list[tuple[str, str, int, int]] = []
    config = Config(worker="engine", slots=2 * MOST, journal=journal)
    async with AsyncOrchestrator(config=config) as orchestrator:
        await one(orchestrator, "recorded", 399, MOST)
        with Yardstick() as yardstick:
            await asyncio.sleep(3 * EVERY)
            for kind, puzzle, n in todo:
                if time.monotonic() > until:
                    break
                if (kind, puzzle, n) not in had:
                    made.append((await one(orchestrator, kind, puzzle, n), kind, puzzle, n))
    said = {"load": os.getloadavg()[0], "runs": made, "loops": yardstick.seen}
    (folder / f"part-{number}.json").write_text(json.dumps(said))


def puzzle_of(kind: str, number: int) -> CountdownProblem:
    """Return a puzzle; recorded and measured ones are drawn apart."""
    return draw(400, SEED if kind == "recorded" else OTHERS)[number]


async def one(orchestrator: AsyncOrchestrator, kind: str, puzzle: int, n: int) -> str:
    """Solve a puzzle by n samples, all of them to their end."""
    planner = Sample(n=n, answer=Prompt(max_tokens=TOKENS))
    text = puzzle_of(kind, puzzle).text
    return (await orchestrator.run(text, task="countdown", planner=planner, seed=100 * puzzle + n)).run


def ends(path: Path, runs: dict[str, CountdownProblem], clock: CoreTime) -> dict[str, list[Ended]]:
    """Return when each sample of some runs ended."""
    came: dict[str, float] = {}
    owner: dict[int, str] = {}
    found: dict[str, list[Ended]] = {run: [] for run in runs}
    for row in Journal(path).rows():
        event: dict[str, Any] = json.loads(row.event)
        if row.kind == "submitted":
            came[event["run"]] = clock(event["at"])
        elif row.kind == "succeeded" and (run := owner.get(event["attempt"])) in runs and run is not None:
            result, puzzle = event["result"], runs[run]
            answer = Plugins().task(Plugin(name="countdown"), puzzle.text).extract(result["value"])
            took = clock(event["at"]) - came[run]
            found[run].append(Ended(took, result["usage"]["completion"], puzzle.is_right(answer)))
        for action in json.loads(row.actions or "[]"):
            if action["kind"] == "dispatch":
                owner[action["job"]["attempt"]] = action["job"]["run"]
    return {run: sorted(each) for run, each in found.items()}


def report(folder: Path) -> None:
    """Fit to the recorded puzzles, predict, and compare with the others."""
    pieces = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("part-*.json"))]
    full = float(np.quantile([loop for _, said in pieces for _, loop, *_ in said["loops"]], 0.1))
    attempts, groups = list[RecordedAttempt](), list[Branches]()
    measured: dict[int, list[list[Ended]]] = {n: [] for n in WIDTHS}
    for at, (path, said) in enumerate(pieces):
        clock, journal = CoreTime(said["loops"], full), path.with_suffix(".jsonl")
        sizes = {run: (kind, n) for run, kind, _, n in said["runs"]}
        puzzles = {run: puzzle_of(kind, puzzle) for run, kind, puzzle, _ in said["runs"]}
        for run, samples in ends(journal, puzzles, clock).items():
            if sizes[run][0] == "recorded":
                groups.append(Branches([each.tokens for each in samples], [each.right for each in samples]))
            else:
                measured[sizes[run][1]].append(samples)
        known = {run for run, (kind, _) in sizes.items() if kind == "recorded"}
        seen = recorded(journal, known, clock)[0] if known else []
        attempts += [replace(each, worker=f"{at}") for each in seen]
        print(f"{path.stem}: load {said['load']:.1f}, speed of the core {clock.speeds.mean():.2f}")
    profile = fit(attempts, model="countdown")
    start = profile.dispatch + profile.read * fmean(each.prompt - each.cached for each in attempts)
    print(f"{len(groups)} recorded puzzles, {len(measured[WIDTHS[0]])} measured; a step of n samples takes", end=" ")
    print(f"{profile.step(0) * 1e3:.2f} ms and {(profile.step(1) - profile.step(0)) * 1e3:.3f} ms for each")
    _table(groups, profile.step, start, measured)


def _table(groups: list[Branches], step: Step, start: float, measured: dict[int, list[list[Ended]]]) -> None:
    print("| n | until | predicted (90 %) | measured (90 %) | error | one pace | one lot | within p90 | it happens |")
    print("|---|---|---|---|---|---|---|---|---|")
    known = Problems(groups)
    lot = Problems(
        [Branches([each for one in groups for each in one.lengths], [each for one in groups for each in one.succeeded])]
    )
    errors: list[tuple[float, float, float]] = []
    for n, runs in measured.items():
        half = n // 2 + 1
        asks: list[tuple[str, Callable[[Problems, Step], Prediction], list[float]]] = [
            ("the first ends", lambda from_, pace, n=n: from_.first(n, pace), [run[0].at for run in runs]),
            (
                "half have ended",
                lambda from_, pace, n=n, half=half: from_.quorum(n, half, pace),
                [run[half - 1].at for run in runs],
            ),
            (
                "one is right",
                lambda from_, pace, n=n: from_.success(n, pace),
                [first.at for run in runs if (first := next((end for end in run if end.right), None))],
            ),
        ]
        for name, ask, times in asks:
            if times:
                said, real = ask(known, step), _mean(times)
                three = said, ask(known, lambda _: step(1)), ask(lot, step)
                ours, pace, one = ((each.mean + start) / real.mean - 1 for each in three)
                errors.append((ours, pace, one))
                within = sum(each <= 1.1 * (said.p90 + start) for each in times) / len(runs)
                print(
                    f"| {n} | {name} | {said.mean + start:.3f} s ({said.low + start:.3f}–{said.high + start:.3f}) | "
                    f"{real.mean:.3f} s ({real.low:.3f}–{real.high:.3f}) | {ours:+.1%} | {pace:+.1%} | {one:+.1%} | "
                    f"{within:.0%} | {said.happens:.0%}, measured {len(times) / len(runs):.0%} |"
                )
    ours, pace, one = ([abs(each[i]) for each in errors] for i in range(3))
    print(
        f"mean error {fmean(ours):.1%}, worst {max(ours):.1%} (goal 15 %); one pace {fmean(pace):.1%}; "
        f"one lot {fmean(one):.1%}. Within p90: of the runs, with a tenth more."
    )


def _mean(times: list[float]) -> Measured:
    rng = np.random.default_rng(0)
    means = rng.choice(times, (2_000, len(times))).mean(axis=1)
    low, high = np.quantile(means, [0.05, 0.95])
    return Measured(fmean(times), float(low), float(high))


def main() -> None:
    """Do what fits into the minutes, then say how far it is."""
    parser = argparse.ArgumentParser(prog="python -m experiments runtimes", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/runtimes"), help="keep the records here")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--report", action="store_true", help="only predict and compare what there is")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="stay on this core")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.report:
        os.sched_setaffinity(0, {options.core})
        part = len(list(options.folder.glob("part-*.json")))
        asyncio.run(work(options.folder, part, options.minutes, done(options.folder)))
    report(options.folder)
