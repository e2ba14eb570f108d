"""How near does the calibrated simulator come to the engine, and what does it get wrong?

The calibrated simulator against the engine: held-out runs of the bundled model, twenty configurations.

    python -m experiments calibration [--folder FOLDER] [--minutes 9] [--report] [--seconds] [--fit NAME]

A profile is fitted to single answers, 1 to 48 at a time, every other lot of them streamed. Held out are puzzles by
votes of 2 and of 8, with short prompts and with long ones, and by threads, on engines of 8 and of 64 slots, 3 and 8
puzzles at a time. Both kinds come in turn, a lot of single answers before each configuration. Figures: the error of the
makespan and of the p99 of runs, and Kendall's τ between the measured and the simulated order of the configurations.

What shares a physical core with a virtual one changes its speed by up to 1.9 times from one second to the next, and no
count of processes shows it. So the process stays on one core, a thread in it times a short loop fifty times a second
there, and times are counted in seconds of that core at its full speed that no other process had; `--seconds` counts by
the clock.

With `--fit "votes of 2"` the profile is fitted to those configurations too, which are then held out no longer.

The work is done in pieces, of a minute or two each, that are kept in the folder: the same command resumes where it
stopped. With each piece stands how much of a core the process had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau

from plait import AsyncOrchestrator
from plait.core import ModelCall, Plan, Plugin, Request, Text
from plait.core.call_config import CallConfig
from plait.core.interfaces import Planner, PlanningContext
from plait.core.messages import pluralise
from plait.planners.threads.threads import Threads
from plait.planners.votes.sample import Sample, Single
from plait.runtime.client.config import Config
from plait.runtime.plugins.loader import Plugins
from plait_bench.countdown import draw
from plait_research.simulation.calibrate import Clock, RecordedAttempt, fit, recorded

from .._tools.command import given_of, page_options
from .._tools.core_time import EVERY, CoreTime, Yardstick
from .._tools.kept import add_row
from .recorded_session import compared

SLOTS, TOGETHER, PUZZLES = (8, 64), (3, 8), 12
KINDS = {
    "votes of 2": (Sample(n=2, answer=CallConfig(max_tokens=200)), 0),
    "votes of 2, long prompts": (Sample(n=2, answer=CallConfig(max_tokens=200)), 40),
    "votes of 8": (Sample(n=8, answer=CallConfig(max_tokens=200)), 0),
    "votes of 8, long prompts": (Sample(n=8, answer=CallConfig(max_tokens=200)), 40),
    "threads": (Threads(), 0),
}
"""Planners, and how many other puzzles (of 8 tokens) stand before the prompt."""
HEADERS = (0, 12, 40)
"""Of single answers; the same in a lot, or each lot would have the same context a sequence."""
LOTS = (1, 2, 4, 8, 16, 32, 48)
"""Single answers at a time, a lot before each configuration."""
ROUNDS = 4


class Piece(NamedTuple):
    """A round on an engine with this number of slots."""

    round: int
    slots: int

    @property
    def name(self) -> str:
        return f"round-{self.round}-slots-{self.slots}"


class Runs(NamedTuple):
    """Runs of one configuration, or of a lot of single answers."""

    what: str
    runs: list[str]
    cores: float
    """CPU seconds of the process in a second."""


def headed(plan: Plan, seed: int, puzzles: int) -> Plan:
    """Return a plan with other puzzles before each prompt. Behind words of no meaning the model says nothing."""
    task = Plugin(name="countdown")
    others = (Plugins().task(task, each.text).render("serial", 8) for each in draw(puzzles, seed + 1))
    header = Text(text=" ".join(others) + " ")
    steps = [
        step.model_copy(update={"op": step.op.model_copy(update={"prompt": (header, *step.op.parts)})})
        if isinstance(step.op, ModelCall)
        else step
        for step in plan.steps
    ]
    return plan.model_copy(update={"steps": tuple(steps)})


async def solve(
    orchestrator: AsyncOrchestrator, what: str, planner: Planner, headers: list[int], together: int, seed: int
) -> Runs:
    """Run some puzzles, a fixed number at a time."""
    gate, problems = asyncio.Semaphore(together), draw(len(headers), seed)

    async def one(number: int, header: int) -> str:
        text = problems[number].text
        request = Request(text=text, task=Plugin(name="countdown"), seed=seed + number)
        plan = planner.start(PlanningContext(request, Plugins().task(request.task, text)))
        given: dict[str, Any] = {"plan": headed(plan, seed + number, header)} if header else {"planner": planner}
        async with gate:
            return (await orchestrator.run(text, task="countdown", seed=seed + number, **given)).run

    wall, cpu = time.perf_counter(), time.process_time()
    runs = await asyncio.gather(*(one(i, header) for i, header in enumerate(headers)))
    return Runs(what, list(runs), (time.process_time() - cpu) / (time.perf_counter() - wall))


async def measured(folder: Path, piece: Piece) -> None:
    """Run all configurations of a piece on a new engine, and write down which runs are whose."""
    journal = folder / f"{piece.name}.jsonl"
    journal.unlink(missing_ok=True)
    rng = random.Random(piece.name)
    kinds = [(name, together) for name in KINDS for together in TOGETHER]
    rng.shuffle(kinds)
    singles = [Single(answer=CallConfig(max_tokens=120, temperature=1.0, stream=streams)) for streams in (False, True)]
    found: list[Runs] = []
    config = Config(model="countdown", worker="engine", slots=piece.slots, journal=journal)
    async with AsyncOrchestrator(config=config) as orchestrator:
        await solve(orchestrator, "", singles[0], [0] * 8, 8, 0)
        with Yardstick() as yardstick:
            await asyncio.sleep(3 * EVERY)
            for number, (name, together) in enumerate(kinds):
                seed, lot = 1_000 * (100 * piece.round + number) + piece.slots, LOTS[(number + piece.round) % len(LOTS)]
                alone, header = [HEADERS[(number + piece.slots // 64) % len(HEADERS)]] * lot, KINDS[name][1]
                single = singles[(number + piece.round // 2) % 2]
                found.append(await solve(orchestrator, "", single, alone, lot, seed + 500))
                what = f"{piece.slots} slots, {name}, {together} at a time"
                found.append(await solve(orchestrator, what, KINDS[name][0], [header] * PUZZLES, together, seed))
    said = {"load": os.getloadavg()[0], "runs": found, "loops": yardstick.seen}
    (folder / f"{piece.name}.json").write_text(json.dumps(said))


def rows_of(folder: Path, seconds: bool, fitted: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Fit to single answers and the configurations `fitted`, simulate the others, and yield a row of what was fitted
    and one for each round of a configuration, in seconds of the core or of the clock."""
    pieces = [(path, json.loads(path.read_text())) for path in sorted(folder.glob("round-*.json"))]
    clocks: list[Clock] = [lambda at: at] * len(pieces)
    full = float(np.quantile([loop for _, said in pieces for _, loop, *_ in said["loops"]], 0.1))
    made = [CoreTime(said["loops"], full) for _, said in pieces]
    if not seconds:
        clocks = made
    speeds = np.concatenate([each.speeds for each in made])
    attempts: list[RecordedAttempt] = []
    for at, (path, said) in enumerate(pieces):
        for what, runs, _ in said["runs"]:
            known = not what or any(each in what for each in fitted)
            seen = recorded(path.with_suffix(".jsonl"), set(runs), clocks[at])[0] if known else ()
            attempts += [replace(each, worker=f"{at} {runs[0]}") for each in seen]
    profile = fit(attempts, model="countdown")
    yield {"profile": profile.model_dump(exclude={"lengths", "machine"}), "fitted": list(fitted), "seconds": seconds,
           "slowest": float(np.quantile(speeds, 0.05)), "speed": float(speeds.mean()),
           "load": median(said["load"] for _, said in pieces)}  # fmt: skip
    for clock, (path, said) in zip(clocks, pieces, strict=True):
        for what, runs, had in said["runs"]:
            if what and not any(each in what for each in fitted):
                told = compared(path.with_suffix(".jsonl"), profile, set(runs), clock=clock)
                yield {"what": what, "piece": path.stem, "cores": had, **told}


ABOUT = """# The calibrated simulator against the engine

`python -m experiments calibration{fit}{clock}`

A profile is fitted to recorded runs of the bundled model, and other runs are simulated by it: their lengths and values
are taken as they were, the time is the simulator's. Times are seconds of {unit}; the core had between {slowest:.0%} and
all of its speed, {speed:.0%} in the mean. Fitted to single answers{fitted}; all that stands here was held out.
{rounds} of each configuration, {puzzles} puzzles each: means, and the lowest and highest round where there are several.
Threads that ran or waited for a core: {load:.0f}.

| configuration | makespan, simulated | error | p99, simulated | error | cores |
|---|---|---|---|---|---|"""


def page_of(lines: Sequence[str]) -> str:
    """Return the page as Markdown, made of the rows."""
    first, *found = [json.loads(line) for line in lines]
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        rows[row["what"]].append(row)
    fitted = first["fitted"]
    about: dict[str, Any] = {name: first[name] for name in ("slowest", "speed", "load")}
    about |= {"fit": "".join(f' --fit "{each}"' for each in fitted), "clock": " --seconds" if first["seconds"] else ""}
    about |= {"fitted": "".join(f" and to {each}" for each in fitted), "puzzles": PUZZLES}
    about["unit"] = "the clock" if first["seconds"] else "the core at its full speed that no other process had"
    about["rounds"] = pluralise(min(map(len, rows.values())), "round")
    return "\n".join([ABOUT.format(**about), *_table(rows), ""])


def _table(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    names = "makespan_seconds", "simulated_makespan_seconds", "p99_seconds", "simulated_p99_seconds"
    figures: list[tuple[float, ...]] = []
    for what, found in sorted(rows.items()):
        figures.append(tuple(fmean(each[name] for each in found) for name in names))
        span, ours, p99, our_p99 = figures[-1]
        off = [[each[b] / each[a] - 1 for each in found] for a, b in (names[:2], names[2:])]
        errors = [
            f"{ratio - 1:+.1%}" + (f" ({min(each):+.1%} to {max(each):+.1%})" if len(each) > 1 else "")
            for ratio, each in zip((ours / span, our_p99 / p99), off, strict=True)
        ]
        yield (
            f"| {what} | {span:.2f} s, {ours:.2f} s | {errors[0]} | {p99:.2f} s, {our_p99:.2f} s | {errors[1]} | "
            f"{fmean(each['cores'] for each in found):.2f} |"
        )
    makespan = fmean(abs(ours / span - 1) for span, ours, _, _ in figures)
    p99 = fmean(abs(ours / real - 1) for _, _, real, ours in figures)
    tau: Any = kendalltau([each[0] for each in figures], [each[1] for each in figures])
    yield ""
    yield (
        f"{len(figures)} configurations: mean error of the makespan {makespan:.1%} (goal 10 %), of the p99 {p99:.1%} "
        f"(20 %), Kendall's τ {tau.statistic:.2f} (.80)."
    )


def main() -> None:
    """Do what fits into the minutes, then write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments calibration", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/calibration"), help="keep the pieces here")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no piece that would probably end later")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", action="store_true", help="report in seconds of the clock, not of the core")
    parser.add_argument("--fit", action="append", default=[], metavar="NAME", help="fit to these configurations too")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="stay on this core")
    page_options(parser, "calibration")
    options = parser.parse_args()
    given = given_of(options, "calibration")
    kept = given.records / "calibration.jsonl"
    if not given.report:
        _work(options)
        kept.unlink(missing_ok=True)
        for row in rows_of(options.folder, options.seconds, options.fit):
            add_row(kept, row)
    found = given.rows(kept)
    print(given.write(page_of(found.lines), found))


def _work(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    began, longest = time.perf_counter(), 0.0
    os.sched_setaffinity(0, {options.core})
    for piece in [Piece(number, slots) for number in range(options.rounds) for slots in SLOTS]:
        if (options.folder / f"{piece.name}.json").exists():
            continue
        now = time.perf_counter()
        if now - began + longest > 60 * options.minutes:
            break
        asyncio.run(measured(options.folder, piece))
        longest = max(longest, time.perf_counter() - now)
        print(f"{piece.name}: {time.perf_counter() - now:.0f} s", flush=True)
