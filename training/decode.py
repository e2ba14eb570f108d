"""Batched generation with a key-value cache, in plain torch: for evaluation without a serving engine.

Rows of different prompt lengths run together; finished rows leave the batch. It decides nothing about what
is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .model import Block, Llama

_PAD = 0  # any word: what stands behind a prompt's end is never looked at


class _Cache:
    """Keys and values of all layers: two tensors (layers, rows, heads, time, head size), and each row's
    length.
    """

    def __init__(self, model: Llama, rows: int, time: int, dtype: torch.dtype) -> None:
        config, device = model.config, model.embedding.device
        shape = (config.layers, rows, config.heads, time, config.d // config.heads)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = torch.zeros(rows, dtype=torch.long, device=device)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.k, self.v, self.length = self.k[:, rows], self.v[:, rows], self.length[rows]


def _prefill(model: Llama, cache: _Cache, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Fill the cache with the prompts; returns the scores after each (rows, vocabulary)."""
    device = model.embedding.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = int(lengths.max())
    ids = torch.tensor([[*p, *[_PAD] * (longest - len(p))] for p in prompts], device=device)
    x = F.embedding(ids, model.embedding)
    cos, sin = model.cos[:longest], model.sin[:longest]
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        q, k, v = block.project(x, cos, sin, torch.float32)
        cache.k[layer, :, :, :longest], cache.v[layer, :, :, :longest] = k, v
        x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True), torch.float32)
    cache.length = lengths
    last = x[torch.arange(len(prompts), device=device), lengths - 1]
    return model.logits(F.rms_norm(last, (model.config.d,), model.norm, model.config.eps), torch.float32)


def _advance(model: Llama, cache: _Cache, ids: Tensor) -> Tensor:
    """Feed one token a row; returns the scores after it (rows, vocabulary)."""
    rows = torch.arange(len(ids), device=ids.device)
    at = cache.length
    span = int(at.max()) + 1
    seen = (torch.arange(span, device=ids.device)[None] <= at[:, None])[:, None, None]
    x = F.embedding(ids, model.embedding)[:, None]
    cos, sin = model.cos[at][:, None, None], model.sin[at][:, None, None]
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        q, k, v = block.project(x, cos, sin, torch.float32)
        cache.k[layer][rows, :, at], cache.v[layer][rows, :, at] = k[:, :, 0], v[:, :, 0]
        keys, values = cache.k[layer, :, :, :span], cache.v[layer, :, :, :span]
        x = block.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=seen), torch.float32)
    cache.length = at + 1
    return model.logits(F.rms_norm(x[:, 0], (model.config.d,), model.norm, model.config.eps), torch.float32)


def _choose(scores: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return scores.argmax(dim=-1)
    return torch.multinomial((scores / temperature).softmax(dim=-1), 1, generator=generator)[:, 0]


def _generate_rows(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    stop: Collection[int],
    limit: int,
    temperature: float,
    generator: torch.Generator | None,
    likely: list[list[float]],
) -> list[list[int]]:
    """Fills `likely` with the log-probability of each token, at temperature 1."""
    out: list[list[int]] = [[] for _ in prompts]
    room = [min(limit, model.config.context - len(p)) for p in prompts]
    cache = _Cache(model, len(prompts), max(len(p) + r for p, r in zip(prompts, room, strict=True)), torch.float32)
    scores = _prefill(model, cache, prompts)
    alive = list(range(len(prompts)))
    while True:
        chosen = _choose(scores, temperature, generator)
        gained = scores.log_softmax(dim=-1).gather(1, chosen[:, None])[:, 0].tolist()
        going = []
        for place, token in enumerate(chosen.tolist()):
            row = alive[place]
            if row < 0:
                continue
            out[row].append(token)
            likely[row].append(gained[place])
            if token in stop or len(out[row]) >= room[row]:
                alive[place] = -1
            else:
                going.append(place)
        if not going:
            return out
        # Finished rows still cost time; throwing them out costs a copy of the cache, so only now and then.
        if len(going) < 0.8 * len(alive):
            kept = torch.tensor(going, device=chosen.device)
            cache.keep(kept)
            chosen, alive = chosen[kept], [alive[place] for place in going]
        scores = _advance(model, cache, chosen)
        cache.length.clamp_(max=cache.k.shape[3] - 1)


def generate(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    stop: Collection[int],
    limit: int,
    temperature: float = 0.0,
    seed: int = 0,
    rows: int = 256,
) -> list[list[int]]:
    """Continuations of the prompts, as of `generate_scored`, without the log-probabilities."""
    return [ids for ids, _ in generate_scored(model, prompts, stop, limit, temperature, seed, rows)]


@torch.inference_mode()
def generate_scored(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    stop: Collection[int],
    limit: int,
    temperature: float = 0.0,
    seed: int = 0,
    rows: int = 256,
) -> list[tuple[list[int], list[float]]]:
    """Continuations of the prompts, each with its stop token (if it came within `limit` tokens and the
    context), and the log-probability in nats of each token (at temperature 1, whatever the temperature).

    Temperature 0 is greedy. Prompts are run `rows` at a time, those of like length together; results keep
    their order.
    """
    generator = torch.Generator(device=model.embedding.device).manual_seed(seed) if temperature else None
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out: list[tuple[list[int], list[float]]] = [([], [])] * len(prompts)
    for at in range(0, len(order), rows):
        part = order[at : at + rows]
        likely: list[list[float]] = [[] for _ in part]
        done = _generate_rows(model, [prompts[i] for i in part], stop, limit, temperature, generator, likely)
        for i, each in zip(part, zip(done, likely, strict=True), strict=True):
            out[i] = each
    return out
