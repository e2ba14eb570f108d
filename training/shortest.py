"""`python -m training.shortest`: supervised training of the bundled model on its own verified shortest threads.

python -m training.shortest problems --count 450 --out problems.jsonl
plait learn rollouts problems.jsonl --collect branches=8 --out r.jsonl --journal runs.plait \
    --task countdown --worker engine --planner threads:n=8,answer.temperature=1,part.temperature=1
plait runs export --from runs.plait --out data.jsonl --select verified=true,cheapest=1,distinct=true
python -m training.shortest train --data data.jsonl
python -m training.shortest evaluate --problems 600 --out experiments/shortest

A stopped run resumes where it stopped. `evaluate` runs both models on one engine, which takes the other's
weights after each piece of problems, so that slow spells of the machine fall on both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from plait_research.rollouts.record import Record
from plait_research.rollouts.store import read_rollouts

from . import export
from .batches import Batch, pad
from .compare import paired, weights_of
from .evaluate import held_out, wilson
from .generate import Trace
from .model import Llama
from .task import draw_problem
from .trades import MODELS, TRADES
from .train import stopping
from .vocab import ID

START = MODELS / "countdown"
FOLDER = Path("build/training/shortest")
PLANNERS = {"asked for 8 threads": "threads:n=8", "asked for 6 threads": "threads:n=6"}
"""Ways in which both models are compared, at temperature 0: a model may also be asked for less."""
PIECE = 50
"""Problems between two exchanges of the weights."""
HELD_OUT_SEED = 77


def problems(count: int, seed: int = 1) -> list[str]:
    """Return different problems of the training split, as the task `countdown` reads them."""
    rng, found = random.Random(f"shortest/{seed}"), dict[str, None]()
    while len(found) < count:
        problem = draw_problem(rng)
        found[f"{' '.join(map(str, problem.numbers))} -> {problem.target}"] = None
    return list(found)


def traces(records: Sequence[Record], asked: int | None = None, least: float = 1.0) -> list[Trace]:
    """Return records as traces: each token that the model wrote counts, none that it read. Records without a written
    token, or with a reward below `least`, are left out.

    With `asked` every prompt asks for that number of threads, whatever its run asked for. Runs of several widths, with
    the cheapest kept, then teach how many threads a problem is worth.
    """
    out: list[Trace] = []
    for each in records:
        if each.generated and (each.reward or 0.0) >= least:
            ids = list(each.tokens)
            if asked is not None and ids[0] == ID["<parent>"]:
                ids[1] = asked
            out.append(Trace(ids, [float(one) for one in each.mask]))
    return out


def batches(data: Sequence[Trace], tokens: int, rng: random.Random) -> list[Batch]:
    """Return all traces in batches of about `tokens` tokens, those of like length together, in random order."""
    groups: list[list[Trace]] = [[]]
    for trace in sorted(data, key=lambda each: len(each.ids)):
        if groups[-1] and len(trace.ids) * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(trace)
    rng.shuffle(groups)
    return [pad(group) for group in groups]


def train(start: Path, data: Sequence[Trace], folder: Path, epochs: int, rate: float, seed: int) -> Llama:
    """Train with AdamW, the rate falling linearly to nothing; a checkpoint after each epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last.pt"
    model = export.load(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    epoch, cpu = 0, time.process_time()
    if last.exists():
        kept = torch.load(last, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        epoch = kept["epoch"]
    with stopping() as stopped, (folder / "loss.jsonl").open("a") as curve:
        while epoch < epochs and not stopped.is_set():
            parts = batches(data, 4400, random.Random(f"{seed}/{epoch}"))
            total = count = 0.0
            for number, batch in enumerate(parts):
                for group in optimizer.param_groups:
                    group["lr"] = rate * (1 - (epoch + number / len(parts)) / epochs)
                written = float(batch.weights[:, 1:].sum())
                loss = model.loss(batch.ids, batch.weights) / written
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                total, count = total + loss.item() * written, count + written
            epoch += 1
            row = {"epoch": epoch, "loss": total / count, "tokens": count, "cpu": round(time.process_time() - cpu, 1)}
            curve.write(json.dumps(row) + "\n")
            curve.flush()
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(kept, folder / ".last.tmp")
            os.replace(folder / ".last.tmp", last)
    facts = {"epochs": epoch, "traces": len(data), "seed": seed, "cpu_seconds": round(time.process_time() - cpu)}
    export.export(model, folder / "model", facts, TRADES["countdown"])
    return model


class Run(NamedTuple):
    """What became of one problem. Tokens are generated ones, those of stopped threads included."""

    solved: bool
    total: int
    critical: int
    threads: int


Runs = dict[tuple[str, str, int], Run]
"""By weights, way and number of the problem."""
Page = Callable[[Sequence[Path], Runs, str, str, Path], Path]
"""Writes the page of runs of two models, what was trained and the command into a folder."""


def kept_runs(path: Path) -> Runs:
    """Return the runs of a file of `evaluate`; none if there is no file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["weights"], row["way"], row["problem"]): Run(*row["run"]) for row in rows}


async def evaluate(folders: Sequence[Path], count: int, path: Path, seconds: float) -> Runs:
    """Run `count` held-out problems with each model in each way, piece by piece; what is in the file already is not run
    again. Stops at a piece's end once `seconds` have passed."""
    from plait.runtime.client.client import AsyncOrchestrator
    from plait.workers.engine import Engine
    from plait_bench.countdown import CountdownProblem

    found, began = kept_runs(path), time.monotonic()
    puzzles = [CountdownProblem(*each) for each in held_out(count, HELD_OUT_SEED)]
    engine = Engine(str(folders[0]), slots=64)
    gate = asyncio.Semaphore(16)
    async with AsyncOrchestrator(workers=[engine], journal="off") as orchestrator:

        async def one(way: str, number: int) -> Run:
            async with gate:
                answer = await orchestrator.run(
                    puzzles[number].text, task="countdown", planner=PLANNERS[way], seed=number
                )
            threads = sum(step.kind == "think" and "child" in step.path for step in answer.report.steps)
            solved = puzzles[number].is_right(answer.answer)
            return Run(solved, answer.total_tokens, answer.critical_path_tokens, threads)

        for place in range(0, count, PIECE):
            part = range(place, min(count, place + PIECE))
            for folder in folders if (place // PIECE) % 2 else reversed(folders):
                name = weights_of(folder)
                wanted = [(way, n) for way in PLANNERS for n in part if (name, way, n) not in found]
                if not wanted or time.monotonic() - began > seconds:
                    continue
                await engine.reload(folder)
                made = await asyncio.gather(*(one(*each) for each in wanted))
                with path.open("a") as file:
                    for (way, n), run in zip(wanted, made, strict=True):
                        found[name, way, n] = run
                        file.write(json.dumps({"weights": name, "way": way, "problem": n, "run": run}) + "\n")
    return found


def difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Return the ratio of the sums and its 95 % interval, by the bootstrap over problems."""
    rng = random.Random(5)
    n, ratios = len(before), list[float]()
    for _ in range(1000):
        drawn = [rng.randrange(n) for _ in range(n)]
        ratios.append(sum(after[i] for i in drawn) / sum(before[i] for i in drawn))
    ratios.sort()
    return sum(after) / sum(before), ratios[25], ratios[974]


def findings(folders: Sequence[Path], runs: Runs) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """Return the summary, the table's rows, and its numbers, of the problems that both models were run on."""
    names = [weights_of(folder) for folder in folders]
    claims: list[str] = []
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for way in PLANNERS:
        numbers = [{n for name, each, n in runs if (name, each) == (model, way)} for model in names]
        both = sorted(numbers[0] & numbers[1])
        sides = [[runs[name, way, n] for n in both] for name in names]
        if not both:
            continue
        for title, side in zip(("before", "after"), sides, strict=True):
            solved = sum(each.solved for each in side)
            low, high = wilson(solved, len(side))
            means = [statistics.fmean(row) for row in zip(*(each[1:] for each in side), strict=True)]
            share = f"{100 * solved / len(side):.1f} % ({100 * low:.1f}–{100 * high:.1f})"
            rows.append([way, title, str(len(side)), share, f"{means[0]:.0f}", f"{means[1]:.0f}", f"{means[2]:.1f}"])
        more, low, high = paired([each.solved for each in sides[0]], [each.solved for each in sides[1]])
        total = difference(*([each.total for each in side] for side in sides))
        critical = difference(*([each.critical for each in side] for side in sides))
        claims.append(
            f"{way}: tokens {total[0]:.2f} ({total[1]:.2f}–{total[2]:.2f}) of those before, critical path "
            f"{critical[0]:.2f} ({critical[1]:.2f}–{critical[2]:.2f}); solved {100 * more:+.1f} points "
            f"({100 * low:+.1f} to {100 * high:+.1f}), paired over {len(both)} problems."
        )
        figures[way] = {"n": len(both), "solved": (more, low, high), "total": total, "critical": critical}
    return claims, rows, figures


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.shortest")
    parser.add_argument("command", choices=("problems", "train", "evaluate"))
    parser.add_argument("--data", type=Path, nargs="+", default=[], help="train: what `plait runs export` wrote")
    parser.add_argument("--start", type=Path, default=START, help="the model before")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="checkpoint, curve, and the model after")
    parser.add_argument("--asked", type=int, help="train: threads that prompts ask for, in place of those in the data")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=450, help="problems: how many")
    parser.add_argument("--problems", type=int, default=600, help="evaluate: how many")
    parser.add_argument("--seconds", type=float, default=math.inf, help="evaluate: stop after so long")
    parser.add_argument("--about", default="", help="evaluate: what the page says of the training")
    parser.add_argument("--out", type=Path, default=None, help="problems: the file; evaluate: the page's folder")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None, write: Page | None = None) -> None:
    """Run the command. `write` makes the page of what was evaluated, for `--out`."""
    options = parse(arguments)
    if options.command == "evaluate" and options.out is not None and write is None:
        raise SystemExit("the page is written by `python -m experiments shortest evaluate --out FOLDER`")
    torch.set_num_threads(1)
    folder: Path = options.folder
    if options.command == "problems":
        out = options.out or folder / "problems.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(json.dumps({"text": text}) + "\n" for text in problems(options.count, options.seed)))
    elif options.command == "train":
        found = [record for path in options.data for rollout in read_rollouts(path) for record in rollout]
        train(options.start, traces(found, options.asked), folder, options.epochs, options.rate, options.seed)
        print((folder / "loss.jsonl").read_text().splitlines()[-1])
    else:
        folders = [options.start, folder / "model"]
        runs = asyncio.run(evaluate(folders, options.problems, folder / "runs.jsonl", options.seconds))
        claims, rows, _ = findings(folders, runs)
        print("\n".join([*claims, *(" | ".join(row) for row in rows)]))
        if options.out is not None and write is not None:
            command = f"python -m experiments shortest evaluate --problems {options.problems}"
            print(write(folders, runs, options.about, command, options.out))


if __name__ == "__main__":
    main()
