"""The supervised start: a short training on five-number traces, from the weights of the bundled model."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import export, train
from ..trades import TRADES


def run(folder: Path, steps: int, seed: int = 1) -> Path:
    """Train, or resume from a checkpoint in the folder; return the exported model."""
    config = train.TrainConfig(
        steps=steps, seed=seed, warmup=20, matrix_rate=0.01, other_rate=2e-3, save_every=10, trade="five"
    )
    state = train.run(config, folder, torch.device("cpu"), quiet=True)
    facts = {"steps": state.step, "tokens": state.tokens, "seconds": round(state.seconds), "seed": seed}
    export.export(state.model, folder / "model", facts, TRADES["five"])
    return folder / "model"
