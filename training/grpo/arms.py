"""The contenders of the page: GRPO with and without credit by thread, rejection sampling, more supervised training.

Each of the first three makes the same number of steps on as many rollouts of its own; the supervised one trains for the
seconds of CPU that the longest of them took. They take turns, and resume where they stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from plait_research.rollouts.advantages import Credit, weighed
from plait_research.rollouts.record import Record

from .. import export, train
from ..batches import Stream
from ..trades import TRADES
from . import five
from .threads import play, records
from .trainer import Learner, Method

RL: dict[str, tuple[Method, Credit]] = {
    "grpo-thread": ("grpo", "thread"),
    "grpo-rollout": ("grpo", "rollout"),
    "rejection": ("rejection", "rollout"),
}
LEG = 5
"""Steps of each arm before the next one's turn."""
PART = 100
"""Held-out problems that each model plays before the next one's turn."""


def rollouts(learner: Learner, problems: int, branches: int) -> list[list[Record]]:
    """Sample the rollouts of a learner's next step with its own weights, in plain torch."""
    rng = random.Random(f"grpo/{learner.seed}/{learner.version}")
    puzzles = [five.draw_problem(rng, test=False) for _ in range(problems)]
    games = play(learner.model, [puzzle for puzzle in puzzles for _ in range(branches)], 1.0, rng.getrandbits(31))
    return [
        records(game, f"{learner.version}-{n // branches}", n % branches, learner.version)
        for n, game in enumerate(games)
    ]


def reinforce(folder: Path, start: Path, arm: str, seed: int, steps: int, problems: int, branches: int) -> Learner:
    """Run the missing steps of an arm, up to a total."""
    method, credit = RL[arm]
    learner = Learner(folder, start, method, seed=seed, keep=5)
    with train.stopping() as stopped:
        while learner.version < steps and not stopped.is_set():
            learner.step(weighed(rollouts(learner, problems, branches), credit))
        if learner.version % 5:
            learner.save()
    return learner


def supervise(folder: Path, start: Path, seed: int, seconds: float) -> float:
    """Train on more traces of the supervised start for a number of CPU seconds, with its rates, warmed up and decayed
    again; return the seconds. The first five steps give the number of steps."""
    done = folder / "done.json"
    if done.exists():
        return float(json.loads(done.read_text())["cpu"])
    state = train.resume(train.TrainConfig(trade="five"), start.parent / "last.pt", torch.device("cpu"))
    config = train.TrainConfig(trade="five", seed=1000 + seed, warmup=5, matrix_rate=0.01, other_rate=2e-3)
    stream = Stream(config.seed, config.batch_tokens, (0, 0), config.pool, TRADES["five"].draw)
    state.step, begun, config.steps = 0, time.process_time(), 1000
    while state.step < config.steps:
        batches = [next(stream) for _ in range(config.accumulate)]
        train.train_step(state, config, state.model.loss, batches, torch.device("cpu"))
        if state.step == 5:
            config.steps = max(10, round(5 * seconds / (time.process_time() - begun)))
    cpu = time.process_time() - begun
    export.export(state.model, folder / "model", {"steps": state.step, "seed": seed}, TRADES["five"])
    done.write_text(json.dumps({"cpu": round(cpu, 1), "steps": state.step, "tokens": state.tokens}) + "\n")
    return cpu


def evaluate(model: Path, out: Path, problems: int, seed: int, temperature: float = 1.0, part: int = PART) -> None:
    """Play held-out problems and write a row for each, `part` at a time; those that are there are not played again."""
    rows = out.read_text().splitlines() if out.exists() else []
    puzzles = five.held_out(problems, seed)
    network = export.load(model)
    for at in range(len(rows), problems, part):
        games = play(network, puzzles[at : at + part], temperature, seed + at)
        lines = [
            {
                "solved": game.solved,
                "critical": game.critical,
                "total": game.total,
                "threads": len(game.threads),
                "hits": sum(thread.hit for thread in game.threads),
            }
            for game in games
        ]
        # In one piece, so that a kill leaves whole parts.
        rows += [json.dumps(line) for line in lines]
        temporary = out.with_suffix(".tmp")
        temporary.write_text("\n".join(rows) + "\n")
        os.replace(temporary, out)


def race(
    folder: Path,
    start: Path,
    seeds: Sequence[int],
    steps: int,
    problems: int,
    branches: int,
    held_out: int,
    report: int,
    leg: int = LEG,
) -> None:
    """Train all arms of all seeds, `leg` steps of each at a time, and play the held-out problems with each, so that
    after every leg there is something to compare. Everything is under the folder; a model is named ARM-SEED-STEPS."""
    folder.mkdir(parents=True, exist_ok=True)
    for upto, seed in itertools.product(range(leg, steps + leg, leg), seeds):
        upto, models = min(upto, steps), {"start": start}
        clock = 0.0
        for arm in RL:
            learner = reinforce(folder / f"{arm}-{seed}", start, arm, seed, upto, problems, branches)
            if learner.version < upto:
                return
            name = f"{arm}-{seed}-{upto}"
            models[name], cpu = _kept(learner, folder / name)
            clock = max(clock, cpu)
        name = f"supervised-{seed}-{upto}"
        supervise(folder / name, start, seed, clock)
        models[name] = folder / name / "model"
        for count in range(PART, held_out + PART, PART):
            for name, model in models.items():
                evaluate(model, folder / f"{name}.rows.jsonl", min(count, held_out), report)


def _kept(learner: Learner, folder: Path) -> tuple[Path, float]:
    """Return the model of a learner as it was after the steps of a leg, and its seconds of CPU."""
    done = folder / "done.json"
    if not done.exists():
        shutil.copytree(learner.weights, folder / "model", dirs_exist_ok=True)
        done.write_text(json.dumps({"cpu": round(learner.cpu, 1), "steps": learner.version}) + "\n")
    return folder / "model", float(json.loads(done.read_text())["cpu"])
