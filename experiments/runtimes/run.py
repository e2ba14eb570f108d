"""How long do n samples take, n = 2 to 32, predicted from other puzzles?

How long n samples of a puzzle take: predicted from runs of other puzzles, against the engine.

    python -m experiments runtimes [--folder FOLDER] [--minutes 4] [--report]

Recorded are puzzles by 32 samples, each puzzle alone on the engine. From these come the lengths of each puzzle's
samples and which of them were right, and the fit of `plait simulate calibrate`: what a step takes by the number of
samples still being written. For other puzzles and n = 2, 4, 8, 16, 32 three times are predicted: until the first ends,
until more than half have, until one is right. The recorded puzzles are averaged, as the next one may be like any.
Then these are measured. Beside the prediction stand two that leave something out: `one pace` takes a step to last as
long as that of one sample, though samples slow one another down; `one lot` takes the samples of all puzzles for draws
of one distribution, though those of one puzzle are alike.

Times are in seconds of the core at its full speed that no other process had (see `_tools/core_time.py`). Puzzles are
done one after another until the minutes are over; the same command resumes where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.core.ops import Plugin
from plait.planners.votes.sample import Sample
from plait.runtime.client.config import Config
from plait.runtime.journal.journal import Journal
from plait.runtime.plugins.loader import Plugins
from plait_bench.countdown import CountdownProblem, draw
from plait_research.simulation.calibrate import RecordedAttempt, fit, recorded
from plait_research.simulation.engine_profile import EngineProfile

from .._tools.command import given_of, page_options
from .._tools.core_time import EVERY, CoreTime, Yardstick
from .._tools.kept import add_row
from .._tools.statistics import share_text
from .prediction import Branches, Prediction, Problems, Step

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
    config = Config(model="countdown", worker="engine", slots=2 * MOST, journal=journal)
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
    planner = Sample(n=n, answer=CallConfig(max_tokens=TOKENS))
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
        for kind, attempt, *where in json.loads(row.actions or "[]"):
            if kind == "dispatch":  # [kind, attempt, RUN:STEP, worker, …]
                owner[attempt] = where[0].partition(":")[0]
    return {run: sorted(each) for run, each in found.items()}


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the page: what was fitted to the recorded puzzles, then each run with its samples' ends."""
    pieces = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("part-*.json"))]
    full = float(np.quantile([loop for _, said in pieces for _, loop, *_ in said["loops"]], 0.1))
    attempts, found, speeds = list[RecordedAttempt](), list[dict[str, Any]](), list[float]()
    for at, (path, said) in enumerate(pieces):
        clock, journal = CoreTime(said["loops"], full), path.with_suffix(".jsonl")
        sizes = {run: (kind, puzzle, n) for run, kind, puzzle, n in said["runs"]}
        puzzles = {run: puzzle_of(kind, puzzle) for run, (kind, puzzle, _) in sizes.items()}
        for run, samples in ends(journal, puzzles, clock).items():
            kind, puzzle, n = sizes[run]
            found.append(
                {"kind": kind, "puzzle": puzzle, "n": n, "ends": [[round(e.at, 4), e.tokens, e.right] for e in samples]}
            )
        known = {run for run, (kind, *_) in sizes.items() if kind == "recorded"}
        seen = recorded(journal, known, clock)[0] if known else []
        attempts += [replace(each, worker=f"{at}") for each in seen]
        speeds.append(float(clock.speeds.mean()))
    profile = fit(attempts, model="countdown")
    start = profile.dispatch + profile.read * fmean(each.prompt - each.cached for each in attempts)
    yield {"profile": profile.model_dump(exclude={"lengths", "machine"}), "start": start, "speed": fmean(speeds),
           "load": median(said["load"] for _, said in pieces)}  # fmt: skip
    yield from found


ABOUT = """# How long n samples take: predicted, and on the engine

`python -m experiments runtimes`

{recorded} puzzles were recorded by {most} samples each, one puzzle at a time, on the bundled model (samples of {tokens}
tokens at most). From them come the lengths of each puzzle's samples, which of them were right, and the pace: the fit of
`plait simulate calibrate` says {fixed:.2f} ms for a step and {more:.3f} ms more for each sample still being written.
For {measured} other puzzles and n = 2 … 32 three times are predicted (`prediction.py`; order
statistics by arXiv 2403.08790) and were measured. Seconds of the core at its full speed; it had {speed:.0%} in
the mean; means and 90 % intervals of the mean (puzzles drawn again). Threads that ran or waited for a core: {load:.0f}.

| n | until | predicted (90 %) | measured (90 %) | error | one pace | one lot | within p90 | it happens |
|---|---|---|---|---|---|---|---|---|"""


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    first, *rows = [json.loads(line) for line in lines]
    profile = EngineProfile.model_validate({**first["profile"], "machine": ""})
    groups, measured = list[Branches](), {n: list[list[Ended]]() for n in WIDTHS}
    for row in rows:
        samples = [Ended(*each) for each in row["ends"]]
        if row["kind"] == "recorded":
            groups.append(Branches([each.tokens for each in samples], [each.right for each in samples]))
        else:
            measured[row["n"]].append(samples)
    whole = min(map(len, measured.values()))
    fixed, more = profile.step(0), profile.step(1) - profile.step(0)
    about = {"recorded": len(groups), "measured": whole, "most": MOST, "tokens": TOKENS, "fixed": 1e3 * fixed}
    about |= {"more": 1e3 * more, "speed": first["speed"], "load": first["load"]}
    return "\n".join([ABOUT.format(**about), *_table(groups, profile.step, first["start"], measured), ""])


def _table(groups: list[Branches], step: Step, start: float, measured: dict[int, list[list[Ended]]]) -> Iterator[str]:
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
                within = share_text(sum(each <= 1.1 * (said.p90 + start) for each in times), len(runs))
                yield (
                    f"| {n} | {name} | {said.mean + start:.3f} s ({said.low + start:.3f}–{said.high + start:.3f}) | "
                    f"{real.mean:.3f} s ({real.low:.3f}–{real.high:.3f}) | {ours:+.1%} | {pace:+.1%} | {one:+.1%} | "
                    f"{within} | {said.happens:.0%}, measured {share_text(len(times), len(runs))} |"
                )
    ours, pace, one = ([abs(each[i]) for each in errors] for i in range(3))
    yield ""
    yield (
        f"Mean error {fmean(ours):.1%}, worst {max(ours):.1%} (goal 15 %); with the pace of one sample (`one pace`) "
        f"{fmean(pace):.1%}; with samples of all puzzles as draws of one distribution (`one lot`) {fmean(one):.1%}. "
        "*Within p90*: runs that ended before the predicted p90 and a tenth. *It happens*: whether any of the samples "
        "is right. Both with 95 % intervals (Wilson)."
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
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="stay on this core")
    page_options(parser, "runtimes")
    options = parser.parse_args()
    given = given_of(options, "runtimes")
    kept = given.records / "runtimes.jsonl"
    if not given.report:
        options.folder.mkdir(parents=True, exist_ok=True)
        os.sched_setaffinity(0, {options.core})
        part = len(list(options.folder.glob("part-*.json")))
        asyncio.run(work(options.folder, part, options.minutes, done(options.folder)))
        kept.unlink(missing_ok=True)
        for row in rows_of(options.folder):
            add_row(kept, row)
    found = given.rows(kept)
    print(given.write(page_of(found.lines), found))
