"""`python -m training.grpo`: reinforcement learning on five-number Countdown. Each command resumes where it stopped.

python -m training.grpo start --steps 320     # the supervised start, from the bundled model
python -m training.grpo loop --steps 20       # GRPO on the engine by the product's loop
python -m training.grpo race --seeds 1 2 3    # all contenders in plain torch, and their held-out problems
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from plait.apps.common.interrupt import run_stoppable

from . import arms, warmup
from .loop import StepReport

FOLDER = Path("build/training/five")
START = FOLDER.with_name("five-start")
REPORT = 2024
"""Seed of the held-out problems of the page."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m training.grpo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("start", "loop", "race"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--start", type=Path, default=START, help="folder of the supervised start")
    parser.add_argument("--steps", type=int, default=None, help="320 to start, else 20")
    parser.add_argument("--problems", type=int, default=8, help="of a step")
    parser.add_argument("--branches", type=int, default=4, help="rollouts of a problem")
    parser.add_argument("--leg", type=int, default=arms.LEG, help="race: steps of each before all are compared")
    parser.add_argument("--credit", choices=("thread", "rollout"), default="thread", help="loop: whose advantage")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the training")
    parser.add_argument("--held-out", type=int, default=1000, help="problems to evaluate with")
    parser.add_argument("--report", type=int, default=REPORT, help="which held-out problems")
    return parser.parse_args(arguments)


def tell(report: StepReport) -> None:
    """Print a step of the loop."""
    again = ", again" if report.again else ""
    sys.stdout.write(f"step {report.step}: {report.rollouts} rollouts, mean reward {report.reward:.3f}{again}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    options = parse(arguments)
    torch.set_num_threads(1)
    model, sizes = options.start / "model", (options.problems, options.branches)
    if options.command == "start":
        print(warmup.run(options.start, options.steps or 320))
    elif options.command == "race":
        arms.race(
            options.folder, model, options.seeds, options.steps or 20, *sizes, options.held_out, options.report,
            options.leg,
        )  # fmt: skip
    else:
        from .engine import learn  # loads vLLM's worker, which the other commands need not

        for seed in options.seeds:
            folder = options.folder / f"loop-{options.credit}-{seed}"
            learner = run_stoppable(
                lambda stopper, folder=folder, seed=seed: learn(
                    folder, model, options.credit, seed, options.steps or 20, *sizes, stopper, tell
                )
            )
            rows = folder.with_name(f"{folder.name}.rows.jsonl")
            arms.evaluate(learner.weights, rows, options.held_out, options.report)


if __name__ == "__main__":
    main()
