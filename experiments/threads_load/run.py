"""From which load on do threads stop paying beside one line of the same words? Virtual time.

    python -m experiments threads_load --predict   (`plait simulate` alone, before anything is measured)
    python -m experiments threads_load             (vLLM's own scheduler and prefix cache)
    python -m experiments threads_load --steps [--predict]   (an engine whose steps decode and prefill, other settings)

1, 8 and 64 questions start at once, in the formats of APR and ThreadWeaver, with 1 to 16 threads each. Every question
has its threads' words also as one line. Planner and machine are plait's, a step takes as long as an H100 would need for
a model of Llama-3-8B's shape (`_tools/virtual_vllm`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from plait import AsyncOrchestrator, Plugin
from plait.core.events import Job
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.planners.threads.threads.dialects import load
from plait.runtime.client.config import Config
from plait_research.simulation.workload import simulate_workload
from tests.planners.token_worker import TokenWorker

from .._tools.statistics import Estimate, mean
from .._tools.virtual_vllm import Engine, VllmWorker, host, host_of_steps, run_virtual
from .transcripts import FORMATS, Transcript, model_of

PAGE = Path(__file__).with_name("README.md")
PREDICTED, MEASURED = PAGE.parent / "data" / "predicted.jsonl", PAGE.parent / "data" / "rows.jsonl"
FORESEEN, FOUND = PAGE.parent / "data" / "predicted_steps.jsonl", PAGE.parent / "data" / "rows_steps.jsonl"
WIDTHS, FLIGHTS, SLOTS = (1, 2, 4, 8, 16), (1, 8, 64), 1_024
OTHER_WIDTHS, OTHER_FLIGHTS = (3, 6, 12), (4, 32)
"""Settings on which the simulated engine whose steps decode and prefill was never run before its claim."""
ROUNDS = {1: 8, 8: 2, 64: 1, 4: 3, 32: 1}
"""How often that many questions start at once; each time they are others."""
WAYS = ("line", "threads")
MAX_TOKENS = {"line": 60_000, "threads": 8_192}
"""Token limit of a call. A run reserves it, of 500,000 by default: 16 threads must fit."""
Row = dict[str, Any]


def request_of(transcript: Transcript, way: str) -> Request:
    """Return the request of a transcript, as threads or as one line."""
    whole = {"max_tokens": MAX_TOKENS[way], "stream": False}
    if way == "line":
        options: dict[str, Any] = {"answer": whole}
        text = f"Run {transcript.number} of {transcript.width}"
        return Request(text=text, planner=Plugin(name="single", options=options))
    options = {"dialect": transcript.format, "early": False, "stop_on_verified": False, "n": transcript.width,
               "answer": whole, "part": whole}  # fmt: skip
    return Request(text=transcript.question, planner=Plugin(name="threads", options=options))


def worker_of(format_: str, way: str, kind: type[TokenWorker] = TokenWorker) -> TokenWorker:
    """Return a worker whose model writes the transcripts of a format."""
    return kind(model_of(format_, way == "line"), load(format_).tags, slots=SLOTS)


def batches(format_: str, width: int, flight: int) -> list[list[Transcript]]:
    """Return the questions of each round."""
    numbers = range(100, 100 + flight * ROUNDS[flight])
    every = [Transcript(format_, width, number) for number in numbers]
    return [every[start : start + flight] for start in range(0, len(every), flight)]


def written(transcript: Transcript, step: str) -> str:
    """Return the model's text of a step."""
    name, _, number = step.partition("-")
    if name == "child":
        return transcript.threads[int(number) - 1] + ("</Thread>" if transcript.format == "threadweaver" else "")
    return {"round-1": transcript.begin, "round-2": transcript.end}.get(step, transcript.line)


def predict(format_: str, width: int, flight: int, way: str, *, steps: bool = False) -> float:
    """Return the mean seconds of a question by `plait simulate`; with `steps`, of an engine whose steps decode and
    prefill, and with tags as single tokens."""
    letters = worker_of(format_, way).tokenizer
    count: Callable[[str], int] = (lambda text: len(letters.said(text))) if steps else len
    engine = host_of_steps(SLOTS) if steps else host(SLOTS)
    means: list[float] = []
    for batch in batches(format_, width, flight):

        def outcome(job: Job, rng: Random, batch: list[Transcript] = batch) -> Result:
            run, _, step = job.step.partition(":")
            text = written(batch[int(run.removeprefix("run-"))], step.rpartition("/")[2])
            return Result(value=text, usage=Usage(completion=count(text)))

        asked = [request_of(each, way) for each in batch]
        report = simulate_workload(asked, [0.0] * flight, hosts=[engine], outcome=outcome)
        assert report.done == flight, report.failure
        means.append(report.latency.mean)
    return round(fmean(means), 5)


def measure(format_: str, width: int, flight: int, way: str) -> list[float]:
    """Return the seconds of each question on vLLM's scheduler."""

    async def work() -> list[float]:
        worker = worker_of(format_, way, VllmWorker)
        assert isinstance(worker, VllmWorker)
        worker.engine = Engine(SLOTS, model=Config.load().model)
        clock = asyncio.get_running_loop().time

        async def one(transcript: Transcript) -> float:
            start = clock()
            (await orchestrator.run(request_of(transcript, way))).unwrap()
            return round(clock() - start, 5)

        async with AsyncOrchestrator(workers=[worker], journal="off", policies=()) as orchestrator:
            return [
                each for batch in batches(format_, width, flight) for each in await asyncio.gather(*map(one, batch))
            ]

    return run_virtual(work)


def rows_of(by: Callable[..., Any], widths: Sequence[int] = WIDTHS, flights: Sequence[int] = FLIGHTS) -> Iterator[Row]:
    """Yield a row for each situation."""
    for format_, width, flight in product(FORMATS, widths, flights):
        yield {
            "format": format_,
            "width": width,
            "flight": flight,
            **{way: by(format_, width, flight, way) for way in WAYS},
        }
        sys.stderr.write(f"{format_}, {width} threads, {flight} in flight\n")


def off_path(row: Row) -> Estimate:
    """Return how much less sooner threads are than their critical path says, %, by question."""
    asked = [each for batch in batches(row["format"], row["width"], row["flight"]) for each in batch]
    paths = [line / critical for line, critical in (each.tokens() for each in asked)]
    return mean([100 * (a / b / path - 1) for a, b, path in zip(row["line"], row["threads"], paths, strict=True)])


def ratio(row: Row) -> Estimate:
    """Return the speed-up of threads over one line, by question: geometric mean with its interval."""
    found = mean([math.log(a / b) for a, b in zip(row["line"], row["threads"], strict=True)])
    return Estimate(*map(math.exp, found))


def tables(measured: Sequence[Row], predicted: Sequence[Row]) -> str:
    """Return the tables of the page."""
    head = ("format", "threads", "in flight", "one line, s", "threads, s", "line ÷ threads", "off the critical path, %",
            "`plait simulate`: line, s", "threads, s")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    off: dict[tuple[str, str], list[float]] = {}
    for row, before in zip(measured, predicted, strict=True):
        seconds = [fmean(row[way]) for way in WAYS]
        path = "{:+.1f} ({:+.1f} to {:+.1f})".format(*off_path(row))
        sooner = "{:.2f} ({:.2f}–{:.2f})".format(*ratio(row))
        width = "one" if row["width"] == 1 else row["width"]
        lines.append(
            f"| {row['format']} | {width} | {row['flight']} | {seconds[0]:.2f} | {seconds[1]:.2f} "
            f"| {sooner} | {path} | {before['line']:.2f} | {before['threads']:.2f} |"
        )
        for way, found in zip(WAYS, seconds, strict=True):
            off.setdefault((row["format"], way), []).append(100 * (before[way] / found - 1))
    lines += ["", "| predicted | way | off, % (lowest to highest) |", "|---|---|---|"]
    lines += [
        f"| {name} | {way} | {median(each):+.1f} ({min(each):+.1f} to {max(each):+.1f}) |"
        for (name, way), each in off.items()
    ]
    return "\n".join(lines) + "\n"


def table_of_steps(measured: Sequence[Row], foreseen: Sequence[Row]) -> str:
    """Return the table of the engine whose steps decode and prefill."""
    lines = ["| format, way | settings | off with shared steps, % (lowest to highest) |", "|---|---|---|"]
    for name, way in product(FORMATS, WAYS):
        pairs = [(row, before) for row, before in zip(measured, foreseen, strict=True) if row["format"] == name]
        off = [100 * (before[way] / fmean(row[way]) - 1) for row, before in pairs]
        lines.append(f"| {name}, {way} | {len(off)} | {median(off):+.1f} ({min(off):+.1f} to {max(off):+.1f}) |")
    return "\n".join(lines) + "\n"


def read(path: Path) -> list[Row]:
    """Return the rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def page(text: str, measured: Sequence[Mapping[str, Any]], predicted: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with the tables of some rows, and that of the other settings if it has one."""
    head, _, rest = text.partition("\n| format |")
    rest = rest.partition("\n| predicted |")[2].partition("\n\n")[2]
    first = tables([*map(dict, measured)], [*map(dict, predicted)])
    between, other, rest = rest.partition("| format, way |")
    if other:
        between += f"{table_of_steps(read(FOUND), read(FORESEEN))}\n"
    return f"{head}\n{first}\n{between}{rest.partition(chr(10) * 2)[2]}"


def main() -> None:
    """Predict, or measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments threads_load", description=__doc__)
    parser.add_argument("--predict", action="store_true", help="only simulate")
    parser.add_argument("--steps", action="store_true", help="other settings, by an engine with shared steps")
    parser.add_argument("--report", action="store_true", help="write the page of the rows that are kept")
    options = parser.parse_args()
    files = (FORESEEN, FOUND) if options.steps else (PREDICTED, MEASURED)
    grid = (OTHER_WIDTHS, OTHER_FLIGHTS) if options.steps else (WIDTHS, FLIGHTS)
    if not options.report:
        by = partial(predict, steps=options.steps) if options.predict else measure
        text = "".join(f"{json.dumps(row)}\n" for row in rows_of(by, *grid))
        files[not options.predict].write_text(text, encoding="utf-8")
    if not options.predict:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read(MEASURED), read(PREDICTED)), encoding="utf-8")


if __name__ == "__main__":
    main()
