"""GRPO on rollout records: advantages within groups, and a clipped policy gradient on the masked tokens.

Advantages of parents are those of Adaptive Parallel Reasoning (arXiv 2504.15466): the rollout's reward against its
group's. With `credit="rollout"` its threads get the same; with `credit="thread"` each thread gets its own, against the
threads of the group that were given the same prompt.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from plait.apps.lab.rollouts.record import Record

from ..model import Llama
from ..vocab import PAD

Credit = Literal["rollout", "thread"]
PRIOR = 2.0
"""How many threads of average success the baseline of a thread begins with."""


class Example(NamedTuple):
    """A record and its advantage."""

    record: Record
    advantage: float


@dataclass(frozen=True)
class Loss:
    """Clip range of the ratio, below and above 1, and tokens a pass."""

    below: float = 0.2
    above: float = 0.28
    tokens: int = 6000


def advantages(records: Sequence[Record], credit: Credit) -> tuple[list[Example], int]:
    """Return the records with advantages that are not 0, and how many were left out for want of a reward.

    Advantages are divided by their spread over the batch, parents' and threads' each by their own.
    """
    judged = [each for each in records if each.judged]
    parents = [each for each in judged if each.index == 0]
    threads = [each for each in judged if each.index]
    by_group: dict[str, list[float]] = defaultdict(list)
    for each in parents:
        by_group[each.group].append(each.reward or 0.0)
    whole = {group: sum(values) / len(values) for group, values in by_group.items()}
    raw = [[Example(each, (each.reward or 0.0) - whole[each.group]) for each in parents]]
    if credit == "rollout":
        raw[0] += [Example(each, (each.reward or 0.0) - whole[each.group]) for each in threads if each.group in whole]
    else:
        raw.append(_own(threads))
    out: list[Example] = []
    for part in raw:
        spread = math.sqrt(sum(each.advantage**2 for each in part) / max(1, len(part)))
        out += [Example(each.record, each.advantage / spread) for each in part if spread and each.advantage]
    return out, len(records) - len(judged)


def shuffled(examples: Sequence[Example], rng: random.Random) -> list[Example]:
    """Return the same records with each other's advantages: a control that does the same work and learns nothing of
    what was right. Parents and threads are shuffled apart, so that the sizes stay where they were."""
    out: list[Example] = []
    for first in (True, False):
        part = [each for each in examples if (each.record.index == 0) is first]
        gains = [each.advantage for each in part]
        rng.shuffle(gains)
        out += [Example(each.record, gain) for each, gain in zip(part, gains, strict=True)]
    return out


def _own(threads: Sequence[Record]) -> list[Example]:
    """A thread's own reward against the others' that had its prompt in its group; few of them count with the average of
    all."""
    alike: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    keys = [(each.group, each.tokens[: each.mask.index(1)]) for each in threads]
    values = [each.own or 0.0 for each in threads]
    for key, value in zip(keys, values, strict=True):
        alike[key].append(value)
    average = sum(values) / max(1, len(values))
    return [
        Example(each, value - (sum(alike[key]) - value + PRIOR * average) / (len(alike[key]) - 1 + PRIOR))
        for each, key, value in zip(threads, keys, values, strict=True)
    ]


def update(
    model: Llama,
    optimizer: torch.optim.Optimizer,
    examples: Sequence[Example],
    loss: Loss,
    rng: random.Random,
    parts: int = 2,
    norm: float = 1.0,
) -> dict[str, float]:
    """Make `parts` optimizer steps over the examples; return means of the ratio, the share clipped, and the gap to the
    sampler's log-probabilities before the first step."""
    order = list(examples)
    rng.shuffle(order)
    figures: dict[str, float] = defaultdict(float)
    for number in range(parts):
        part = sorted(order[number::parts], key=lambda each: len(each.record.tokens))
        count = sum(each.record.generated for each in part)
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
    for each in part:
        if out[-1] and len(each.record.tokens) * (len(out[-1]) + 1) > tokens:
            out.append([])
        out[-1].append(each)
    return out


def _pass(
    model: Llama, batch: Sequence[Example], loss: Loss, count: int, figures: dict[str, float], first: bool
) -> None:
    longest = max(len(each.record.tokens) for each in batch)

    def padded(rows: Sequence[Sequence[float]], fill: float, kind: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=kind)

    ids = padded([each.record.tokens for each in batch], PAD, torch.long)
    wanted = padded([each.record.mask for each in batch], 0, torch.bool)[:, 1:]
    before = padded([each.record.logprobs for each in batch], 0.0, torch.float32)[:, 1:][wanted]
    gains = torch.tensor([each.advantage for each in batch])[:, None].expand(wanted.shape)[wanted]
    states = model.hidden(ids[:, :-1], torch.bfloat16)
    now = -F.cross_entropy(model.logits(states[wanted], torch.bfloat16), ids[:, 1:][wanted], reduction="none")
    ratio = (now - before).exp()
    clipped = ratio.clamp(1 - loss.below, 1 + loss.above)
    value = -torch.minimum(ratio * gains, clipped * gains).sum() / count
    value.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        figures["clipped"] += float((ratio != clipped).sum())
        figures["tokens"] += len(before)
        if first:
            figures["gap"] += float((now - before).abs().sum())
            figures["first"] += len(before)
