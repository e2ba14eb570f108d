"""The training loop: seeded, resumable, with checkpoints, a progress bar and a loss curve as JSON lines.

Decides the schedule (warm-up, flat, decay over the second half) and the learning rates. A run that was
stopped and resumed gives the same weights as one that was not: batches depend only on the seed and their
number. It does not know what the traces mean.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from .batches import Batch, Stream
from .export import load
from .model import Llama, ModelConfig, parameter_count
from .optim import Muon, learning_rate
from .trades import TRADES


@dataclass
class TrainConfig:
    """What one run is made of; rates are the peaks of the schedule, `batch_tokens` x `accumulate` tokens a
    step.
    """

    steps: int = 16_000
    seed: int = 1
    batch_tokens: int = 1600
    accumulate: int = 3
    matrix_rate: float = 0.02
    other_rate: float = 3e-3
    warmup: int = 200
    decay_share: float = 0.48
    save_every: int = 100
    pool: int = 768
    compile: bool = False  # fuse the forward pass; about 10 % faster, needs a C++ compiler
    model: ModelConfig = field(default_factory=ModelConfig)
    trade: str = "countdown"
    """What is learned: a name in `trades.TRADES`."""


@dataclass
class State:
    """Everything a checkpoint holds, live."""

    model: Llama
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    position: tuple[int, int] = (0, 0)


def start(config: TrainConfig, device: torch.device) -> State:
    """A fresh state, its start values fixed by the seed."""
    torch.manual_seed(config.seed)
    model = Llama(config.model).to(device)
    begin = TRADES[config.trade].start
    if begin is not None:
        model.load_state_dict(load(begin, device).state_dict())
    matrices = [p for p in model.blocks.parameters() if p.ndim > 1]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    adam = torch.optim.AdamW(others, lr=config.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    return State(model, [Muon(matrices, lr=config.matrix_rate), adam])


def save(state: State, config: TrainConfig, folder: Path, name: str = "last.pt") -> Path:
    """Write a checkpoint, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "model": state.model.state_dict(),
        "optimizers": [o.state_dict() for o in state.optimizers],
        "counters": [state.step, state.tokens, state.seconds, list(state.position)],
        "config": asdict(config),
    }
    path, temporary = folder / name, folder / f".{name}.tmp"
    torch.save(content, temporary)
    os.replace(temporary, path)
    return path


def resume(config: TrainConfig, path: Path, device: torch.device) -> State:
    """The state of a checkpoint; the run may have another length now, but not another model."""
    content = torch.load(path, map_location=device, weights_only=True)
    if content["config"]["model"] != config.model.as_dict():
        raise ValueError(f"{path} holds a model of another size: {content['config']['model']}")
    state = start(config, device)
    state.model.load_state_dict(content["model"])
    for optimizer, saved in zip(state.optimizers, content["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    state.step, state.tokens, state.seconds, position = content["counters"]
    state.position = (position[0], position[1])
    return state


def train_step(
    state: State,
    config: TrainConfig,
    loss_of: Callable[..., Tensor],
    batches: list[Batch],
    device: torch.device,
) -> float:
    """One update; returns the weighted mean loss in nats."""
    factor = learning_rate(state.step, config.steps, config.warmup, config.decay_share)
    for optimizer, peak in zip(state.optimizers, (config.matrix_rate, config.other_rate), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = peak * factor
    total = sum(float(b.weights[:, 1:].sum()) for b in batches)
    value = 0.0
    for batch in batches:
        loss = loss_of(batch.ids.to(device), batch.weights.to(device)) / total
        loss.backward()  # type: ignore[no-untyped-call]
        value += loss.item()
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    state.step += 1
    state.tokens += sum(b.tokens for b in batches)
    return value


def run(config: TrainConfig, folder: Path, device: torch.device, fresh: bool = False, quiet: bool = False) -> State:
    """Train to `config.steps`, from the last checkpoint in the folder if there is one; returns the final
    state.
    """
    last = folder / "last.pt"
    state = start(config, device) if fresh or not last.exists() else resume(config, last, device)
    folder.mkdir(parents=True, exist_ok=True)
    stream = Stream(config.seed, config.batch_tokens, state.position, config.pool, TRADES[config.trade].draw)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    loss_of = torch.compile(state.model.loss, dynamic=True) if config.compile else state.model.loss
    before, begun = state.seconds, time.monotonic()
    smooth: float | None = None
    with Progress(*columns, disable=quiet) as bar, stopping() as stopped, (folder / "loss.jsonl").open("a") as curve:
        task = bar.add_task(f"{parameter_count(state.model):,} parameters", total=config.steps, completed=state.step)
        while state.step < config.steps and not stopped.is_set():
            batches = [next(stream) for _ in range(config.accumulate)]
            loss = train_step(state, config, loss_of, batches, device)
            state.position = stream.position
            state.seconds = before + time.monotonic() - begun
            smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
            if state.step % 50 == 0:
                row = {
                    "step": state.step,
                    "tokens": state.tokens,
                    "seconds": round(state.seconds, 1),
                    "loss": smooth,
                }
                curve.write(json.dumps(row) + "\n")
                curve.flush()
                bar.update(task, completed=state.step, description=f"loss {smooth:.4f}")
            if state.step % config.save_every == 0 or state.step == config.steps:
                save(state, config, folder)
    if stopped.is_set():
        save(state, config, folder)
    return state


@contextmanager
def stopping() -> Iterator[Event]:
    """Set at SIGTERM and Ctrl-C, so that the current step is finished and saved."""
    stopped = Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
