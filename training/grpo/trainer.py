"""A trainer on rollout records: GRPO's clipped policy gradient on the masked tokens, or how likely what was right is.

The records have their advantages (`plait_research.rollouts.advantages`): of their rollouts, and threads that were
judged by themselves their own. Rejection sampling takes the rollouts that were right, and of threads those that hit, as
they are: each token counts one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional as F

from plait_research.rollouts.record import Record

from .. import export
from ..model import Llama
from ..trades import TRADES
from ..vocab import PAD

Method = Literal["grpo", "rejection"]
RATE = 6e-4
"""Learning rate."""


class Example(NamedTuple):
    """A record and the weight of each of its tokens."""

    record: Record
    gains: Sequence[float]


@dataclass(frozen=True)
class Loss:
    """Clip range of the ratio, below and above 1, and tokens a pass. Without a ratio: the tokens' likelihood."""

    below: float = 0.2
    above: float = 0.28
    tokens: int = 6000
    ratio: bool = True


def examples(rollouts: Sequence[Sequence[Record]], method: Method) -> list[Example]:
    """Return the training records: of GRPO the records whose advantage is not 0, of rejection sampling those that were
    right."""
    records = [record for rollout in rollouts for record in rollout if record.generated]
    if method == "rejection":
        right = [record for record in records if (record.reward if record.own is None else record.own)]
        return [Example(record, [float(one) for one in record.mask]) for record in right]
    out = [Example(record, record.token_advantages) for record in records if record.judged]
    return [example for example in out if any(example.gains)]


class Learner:
    """The trainer of one run: its folder holds the checkpoint, the model as engines load it, and the curve.

    Args:
        start: folder of the model that training begins with.
        rate: learning rate of AdamW, reached after three steps.
        keep: steps between two checkpoints.
    """

    def __init__(
        self, folder: Path, start: Path, method: Method = "grpo", rate: float = RATE, seed: int = 1, keep: int = 1
    ) -> None:
        self.folder, self.rate, self.seed, self._keep = folder, rate, seed, keep
        self.method: Method = method
        folder.mkdir(parents=True, exist_ok=True)
        self.version, self.cpu, self.weights = 0, 0.0, start
        """Steps, and the seconds of CPU that they and their rollouts took."""
        self.model = export.load(start)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
        if (last := folder / "last.pt").exists():
            kept = torch.load(last, weights_only=True)
            self.model.load_state_dict(kept["model"])
            self._optimizer.load_state_dict(kept["optimizer"])
            self.version, self.cpu, self.weights = kept["step"], kept["cpu"], folder / "model"
        self._clock = time.process_time()

    def step(self, rollouts: Sequence[Sequence[Record]]) -> Path:
        """Train on rollouts that have their advantages, and return the folder of the new model."""
        rng = random.Random(f"{self.seed}/{self.version}")
        made = examples(rollouts, self.method)
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (self.version + 1) / 3)
        loss = Loss() if self.method == "grpo" else Loss(ratio=False)
        figures = update(self.model, self._optimizer, made, loss, rng)
        self.version += 1
        self.cpu += time.process_time() - self._clock
        self._clock = time.process_time()
        if self.version % self._keep == 0:
            self.save()
        threads = [record.own for rollout in rollouts for record in rollout if record.own is not None]
        row = {
            "step": self.version,
            "cpu": round(self.cpu, 3),
            "rollouts": len(rollouts),
            "solved": sum(bool(rollout[0].reward) for rollout in rollouts) / len(rollouts),
            "thread_hits": sum(threads) / max(1, len(threads)),
            "threads": len(threads) / len(rollouts),
            "total": sum(record.generated for rollout in rollouts for record in rollout) / len(rollouts),
            "examples": len(made),
            **{name: round(value, 5) for name, value in figures.items()},
        }
        with (self.folder / "curve.jsonl").open("a") as curve:
            curve.write(json.dumps(row) + "\n")
        return self.weights

    def save(self) -> None:
        """Write the model and the checkpoint. The latter counts, so it comes last, as a whole."""
        export.export(self.model, self.folder / "model", {"steps": self.version}, TRADES["five"])
        kept: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save({**kept, "step": self.version, "cpu": self.cpu}, self.folder / ".last.tmp")
        os.replace(self.folder / ".last.tmp", self.folder / "last.pt")
        self.weights = self.folder / "model"


def update(
    model: Llama,
    optimizer: torch.optim.Optimizer,
    given: Sequence[Example],
    loss: Loss,
    rng: random.Random,
    parts: int = 2,
    norm: float = 1.0,
) -> dict[str, float]:
    """Make `parts` optimizer steps over the examples; return means of the ratio, the share clipped, and the gap to the
    sampler's log-probabilities before the first step."""
    order = list(given)
    rng.shuffle(order)
    figures: dict[str, float] = defaultdict(float)
    for number in range(parts):
        part = sorted(order[number::parts], key=lambda example: len(example.record.tokens))
        count = sum(example.record.generated for example in part)
        if not count:
            continue
        for batch in _batches(part, loss.tokens):
            _pass(model, batch, loss, count, figures, first=number == 0)
        figures["norm"] += float(torch.nn.utils.clip_grad_norm_(model.parameters(), norm)) / parts
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    gap = figures.pop("gap", 0.0) / max(1.0, figures.pop("first", 0.0))
    total = max(1.0, figures.pop("tokens", 0.0))
    return {"clipped": figures.pop("clipped", 0.0) / total, "gap": gap, **figures}


def _batches(part: Sequence[Example], tokens: int) -> list[list[Example]]:
    out: list[list[Example]] = [[]]
    for example in part:
        if out[-1] and len(example.record.tokens) * (len(out[-1]) + 1) > tokens:
            out.append([])
        out[-1].append(example)
    return out


def _pass(
    model: Llama, batch: Sequence[Example], loss: Loss, count: int, figures: dict[str, float], first: bool
) -> None:
    longest = max(len(example.record.tokens) for example in batch)

    def padded(rows: Sequence[Sequence[float]], fill: float, kind: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=kind)

    ids = padded([example.record.tokens for example in batch], PAD, torch.long)
    wanted = padded([example.record.mask for example in batch], 0, torch.bool)[:, 1:]
    before = padded([example.record.logprobs for example in batch], 0.0, torch.float32)[:, 1:][wanted]
    gains = padded([example.gains for example in batch], 0.0, torch.float32)[:, 1:][wanted]
    states = model.hidden(ids[:, :-1], torch.bfloat16)
    now = -F.cross_entropy(model.logits(states[wanted], torch.bfloat16), ids[:, 1:][wanted], reduction="none")
    ratio = (now - before).exp()
    clipped = ratio.clamp(1 - loss.below, 1 + loss.above)
    gained = torch.minimum(ratio * gains, clipped * gains) if loss.ratio else now * gains
    (-gained.sum() / count).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        figures["clipped"] += float((ratio != clipped).sum())
        figures["tokens"] += len(before)
        if first:
            figures["gap"] += float((now - before).abs().sum())
            figures["first"] += len(before)
