"""`python -m training.grpo`: GRPO on five-number Countdown. It goes on where a checkpoint is.

python -m training.grpo start --steps 320      # the supervised start, from the bundled model
python -m training.grpo train --steps 200      # on-policy rollouts, records, updates; curve in FOLDER/curve.jsonl
python -m training.grpo evaluate --problems 1000
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch

from .. import export
from ..trades import TRADES
from ..train import stopping
from . import evaluate, five, warmup
from .threads import play, records
from .trainer import Loss, advantages, shuffled, update

START = Path("build/training/five-start")
FOLDER = Path("build/training/five-grpo")
COMMAND = "python -m training.grpo start && python -m training.grpo train && python -m experiments grpo evaluate"

Page = Callable[[evaluate.Pair, Path, str, Path], Path]
"""Writes the page of a pair, its curve and the command into a folder."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m training.grpo", description=__doc__)
    parser.add_argument("command", choices=("start", "train", "evaluate"))
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--start", type=Path, default=START / "model", help="the model that training begins with")
    parser.add_argument("--steps", type=int, default=None, help="320 to start, 200 to train")
    parser.add_argument("--minutes", type=float, default=None, help="train: stop after so long")
    parser.add_argument("--problems", type=int, default=None, help="a step: 24; to evaluate: 1,000")
    parser.add_argument("--branches", type=int, default=4, help="rollouts of a problem")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate of AdamW")
    parser.add_argument("--credit", choices=("thread", "rollout"), default="thread")
    parser.add_argument("--shuffled", action="store_true", help="control: records get each other's advantages")
    parser.add_argument("--seed", type=int, default=1, help="of the training; of the problems that are evaluated")
    parser.add_argument("--out", type=Path, default=None, help="evaluate: write the page of results into this folder")
    parser.add_argument("--save-records", action="store_true", help="keep the records of each step in FOLDER/records")
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> None:
    """The loop: sample, make records, update; a checkpoint after each tenth step."""
    folder: Path = options.folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    model = export.load(options.start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0)
    steps = options.steps or 200
    step, last = 0, folder / "last.pt"
    if last.exists():
        kept = torch.load(last, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    begun, cpu = time.monotonic(), time.process_time()
    problems = options.problems or 24
    with stopping() as stopped, (folder / "curve.jsonl").open("a") as curve:
        while step < steps and not stopped.is_set():
            rng = random.Random(f"grpo/{options.seed}/{step}")
            puzzles = [five.draw_problem(rng, test=False) for _ in range(problems)]
            games = play(model, [each for each in puzzles for _ in range(options.branches)], 1.0, rng.getrandbits(31))
            made = [
                record
                for n, game in enumerate(games)
                for record in records(game, f"{step}-{n // options.branches}", n % options.branches, step)
            ]
            if options.save_records:
                (folder / "records").mkdir(exist_ok=True)
                (folder / "records" / f"{step}.jsonl").write_text("".join(each.line() for each in made))
            examples, left_out = advantages(made, options.credit)
            if options.shuffled:
                examples = shuffled(examples, rng)
            for group in optimizer.param_groups:
                group["lr"] = options.rate * min(1.0, (step + 1) / 5)
            figures = update(model, optimizer, examples, Loss(), rng)
            step += 1
            threads = [thread for game in games for thread in game.threads]
            row = {
                "step": step,
                "seconds": round(time.monotonic() - begun, 1),
                "cpu": round(time.process_time() - cpu, 1),
                "solved": sum(game.solved for game in games) / len(games),
                "thread_hits": sum(each.hit for each in threads) / max(1, len(threads)),
                "threads": len(threads) / len(games),
                "critical": sum(game.critical for game in games) / len(games),
                "total": sum(game.total for game in games) / len(games),
                "left_out": left_out,
                **{name: round(value, 5) for name, value in figures.items()},
            }
            curve.write(json.dumps(row) + "\n")
            curve.flush()
            late = options.minutes is not None and time.monotonic() - begun > 60 * options.minutes
            if step % 10 == 0 or step == steps or stopped.is_set() or late:
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(kept, folder / ".last.tmp")
                os.replace(folder / ".last.tmp", last)
                export.export(model, folder / "model", {"steps": step}, TRADES["five"])
            if late:
                break


def main(arguments: list[str] | None = None, write: Page | None = None) -> None:
    """Run the command. `write` makes the page of what was evaluated, for `--out`."""
    options = parse(arguments)
    if options.out is not None and write is None:
        raise SystemExit("the page is written by `python -m experiments grpo evaluate --out FOLDER`")
    torch.set_num_threads(1)
    if options.command == "start":
        print(warmup.run(options.folder or START, options.steps or 320, options.seed))
    elif options.command == "train":
        train(options)
    else:
        folder = options.folder or FOLDER
        before, after = export.load(options.start), export.load(folder / "model")
        pair = evaluate.compare(before, after, options.problems or 1000, options.seed)
        (folder / "evaluation.json").write_text(json.dumps(dataclasses.asdict(pair), indent=1) + "\n")
        print(evaluate.table(pair))
        if options.out is not None and write is not None:
            print(write(pair, folder / "curve.jsonl", COMMAND, options.out))


if __name__ == "__main__":
    main()
