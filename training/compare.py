"""Two trained models on the same held-out problems: does a retraining reach what the shipped one does?

Decides what is compared and when a share counts as reproduced. Problems, runs and intervals are `evaluate.py`'s; on
the engine `plait eval` runs them. What was run is kept, by the models' weights, so that a comparison can resume.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import export
from .controller import Outcome, Puzzle, run_single, run_threads
from .evaluate import held_out, wilson
from .model import Llama

NAMES = ("shipped", "retrained")
ENGINE_SEED = 11
"""Of the problems that are drawn for the engine."""

Mode = Callable[[Llama, Sequence[Puzzle]], Sequence[Outcome]]
MODES: dict[str, Mode] = {
    "serial, T=0": lambda model, puzzles: run_single(model, "serial", puzzles, 8),
    "direct, T=0": lambda model, puzzles: run_single(model, "direct", puzzles, None),
    "threads k=8 forked, T=0": lambda model, puzzles: run_threads(model, puzzles, 8)[0],
}
"""In plain torch. All are greedy: a difference is one of the models."""
ENGINE = {
    "serial, T=0, on the engine": "single",
    "threads k=8 forked, T=0, on the engine": "threads:n=8,stop_on_verified=false,early=false",
}
"""In vLLM in a Ray actor: planners of `plait eval`."""


class Pair(NamedTuple):
    """One mode, both models, problem by problem."""

    mode: str
    first: list[bool]
    second: list[bool]

    @property
    def reproduced(self) -> bool:
        """Whether the second's share lies within the first's interval."""
        low, high = wilson(sum(self.first), len(self.first))
        return low <= sum(self.second) / len(self.second) <= high


def paired(first: Sequence[bool], second: Sequence[bool], z: float = 1.96) -> tuple[float, float, float]:
    """Return how much more the second solves, as a share, and the 95 % interval of that: the adjusted Wald interval for
    paired shares (Bonett and Price, 2012), which counts one more problem that only the first solves, and one that only
    the second does. Raises `ValueError` for series of different lengths."""
    n = len(first)
    if n != len(second) or n == 0:
        raise ValueError(f"{n} and {len(second)} problems cannot be paired")
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    won = sum(b and not a for a, b in zip(first, second, strict=True))
    p, q = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return (won - lost) / n, max(-1.0, p - q - half), min(1.0, p - q + half)


def weights_of(folder: Path) -> str:
    """Return the hash of a model's weights."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


class Kept:
    """What was run, in a JSON file: whether each problem was solved, by weights, mode and number of problems."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, folder: Path, mode: str, count: int, run: Callable[[], list[bool]]) -> list[bool]:
        """Return the stored result, or run it and store it."""
        key = f"{weights_of(folder)} {mode} {count}"
        found = self._read()
        if key in found:
            return found[key]
        solved = run()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._read() | {key: solved}))
        os.replace(temporary, self._path)
        return solved

    def _read(self) -> dict[str, list[bool]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


def compare(folders: Sequence[Path], count: int, kept: Kept, device: torch.device, engine: bool) -> list[Pair]:
    """Run both models in every mode on `count` problems; those that were run before are taken as they were."""
    puzzles = held_out(count)
    pairs: list[Pair] = []

    def add(mode: str, run: Callable[[Path], list[bool]]) -> None:
        solved: list[list[bool]] = []
        for name, folder in zip(NAMES, folders, strict=True):
            solved.append(kept.get(folder, mode, count, lambda folder=folder: run(folder)))
            print(f"{mode}, {name}: {sum(solved[-1])} of {count}", flush=True)
        pairs.append(Pair(mode, *solved))

    for mode, solve in MODES.items():
        add(mode, lambda folder, solve=solve: [o.solved for o in solve(export.load(folder, device), puzzles)])
    for mode, planner in ENGINE.items() if engine else ():
        add(mode, lambda folder, planner=planner: on_engine(folder, planner, count))
    return pairs


def on_engine(folder: Path, planner: str, count: int) -> list[bool]:
    """Solve `count` held-out problems with `plait eval`; return which were. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory() as place:
        answers = Path(place) / "answers.jsonl"
        command = [sys.executable, "-m", "plait.apps.main", "eval", "countdown", "--model", str(folder)]
        command += ["--planner", planner, "--limit", str(count), "--seed", str(ENGINE_SEED)]
        done = subprocess.run([*command, "--out", str(answers), "--journal", "off"], check=False)
        rows = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
    if done.returncode or len(rows) != count:
        raise RuntimeError(f"plait eval ended with {done.returncode} after {len(rows)} of {count} problems")
    return [row["solved"] for row in rows]


def findings(pairs: Sequence[Pair]) -> tuple[list[str], list[list[str]], dict[str, Any]]:
    """Return the summary, the rows of the table, and its numbers unrounded."""
    rows: list[list[str]] = []
    figures: dict[str, Any] = {}
    for pair in pairs:
        cells, numbers = [], {}
        for name, solved in zip(NAMES, (pair.first, pair.second), strict=True):
            low, high = wilson(sum(solved), len(solved))
            share = sum(solved) / len(solved)
            cells.append(f"{100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f})")
            numbers[name] = {"value": share, "low": low, "high": high}
        more, low, high = paired(pair.first, pair.second)
        numbers["difference"] = {"value": more, "low": low, "high": high}
        difference = f"{100 * more:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
        rows.append([pair.mode, str(len(pair.first)), *cells, difference, "yes" if pair.reproduced else "no"])
        figures[pair.mode] = {"n": len(pair.first), **numbers, "reproduced": pair.reproduced}
    count = sum(pair.reproduced for pair in pairs)
    claim = (
        f"In {count} of {len(pairs)} modes the share that the retrained model solves lies within the 95 % interval of "
        "the shipped one's."
    )
    return [claim], rows, figures


def facts_of(folder: Path) -> dict[str, Any]:
    """Return an exported model's record of its training."""
    path = folder / "training.json"
    return json.loads(path.read_text()) if path.exists() else {}
