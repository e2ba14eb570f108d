"""The network: a small Llama in plain torch, with the parameter names of Hugging Face's LlamaForCausalLM.

Decides the size, the start values (number embeddings begin as Fourier features, so that neighbours and
equal remainders look alike from step 0) and the precision: matrix products in bfloat16, everything else in
float32. It does not know the task beyond which ids are numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .vocab import MAX_NUMBER, TARGET_BASE, VOCAB_SIZE

FOURIER_PERIODS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 16, 20, 25, 32, 50, 64, 100, 128, 256)
EMBEDDING_STD = 0.05


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the network; `context` is in tokens."""

    d: int = 128
    layers: int = 5
    heads: int = 4
    ff: int = 384
    context: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5
    vocab: int = VOCAB_SIZE
    numbers: bool = True
    """The first ids are the numbers 0..127, then the targets; they start as Fourier features."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


SIZES = {"small": ModelConfig(), "large": ModelConfig(d=192, layers=7, heads=6, ff=512)}
"""The two of one family: 1.1 million parameters (the default of the package) and 3.2 million."""


def number_features(d: int) -> Tensor:
    """(128, d) start embeddings of the numbers 0..127: waves of several periods and two magnitudes, mixed."""
    n = torch.arange(MAX_NUMBER + 1, dtype=torch.float32)[:, None]
    angles = 2 * math.pi * n / torch.tensor(FOURIER_PERIODS, dtype=torch.float32)
    features = torch.cat([angles.cos(), angles.sin(), n / 64 - 1, torch.log1p(n) / 2.5 - 1], dim=1)
    mix = torch.randn(features.shape[1], d)
    mixed = features @ mix
    return mixed / mixed.std()


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin, each (context, head size), in Hugging Face's half-split layout."""
    size = config.d // config.heads
    inverse = config.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * inverse
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (..., time, head size)."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


class Block(nn.Module):
    """One transformer layer; q, k, v and gate, up are stored joined (split again on export)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, ff = config.d, config.ff
        self.heads, self.eps = config.heads, config.eps
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Parameter(torch.randn(3, d, d) / math.sqrt(d))
        self.o = nn.Parameter(torch.randn(d, d) / math.sqrt(d * 2 * config.layers))
        self.gate_up = nn.Parameter(torch.randn(2, ff, d) / math.sqrt(d))
        self.down = nn.Parameter(torch.randn(d, ff) / math.sqrt(ff * 2 * config.layers))

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q and k, and v, each (rows, heads, time, head size) float32, of x (rows, time, d)."""
        rows, time, d = x.shape
        y = F.rms_norm(x, (d,), self.attention_norm, self.eps)
        joined = F.linear(y.to(dtype), self.qkv.reshape(3 * d, d).to(dtype)).float()
        q, k, v = joined.view(rows, time, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor, dtype: torch.dtype) -> Tensor:
        """The rest of the layer, given the attention's outcome (rows, heads, time, head size)."""
        rows, time, d = x.shape
        joined = attended.transpose(1, 2).reshape(rows, time, d)
        x = x + F.linear(joined.to(dtype), self.o.to(dtype)).float()
        y = F.rms_norm(x, (d,), self.mlp_norm, self.eps).to(dtype)
        gate, up = F.linear(y, self.gate_up.reshape(-1, d).to(dtype)).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down.to(dtype)).float()


class Llama(nn.Module):
    """Tied embeddings, RMSNorm, rotary positions, SwiGLU."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        table = torch.randn(config.vocab, config.d)
        if config.numbers:
            numbers = number_features(config.d)
            table[: MAX_NUMBER + 1] = numbers
            # A target looks like its number, turned by one shared vector that says "this is the goal".
            table[TARGET_BASE : TARGET_BASE + MAX_NUMBER + 1] = numbers + torch.randn(config.d)
        self.embedding = nn.Parameter(table * EMBEDDING_STD)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.Parameter(torch.ones(config.d))
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def hidden(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Final normed states (rows, time, d) of ids (rows, time) padded on the right."""
        x = F.embedding(ids, self.embedding)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, v = block.project(x, cos, sin, dtype)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True), dtype)
        return F.rms_norm(x, (self.config.d,), self.norm, self.config.eps)

    def logits(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """Scores of the next token (..., vocabulary), float32."""
        return F.linear(hidden.to(dtype), self.embedding.to(dtype)).float()

    def loss(self, ids: Tensor, weights: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Sum over the batch of weight x cross-entropy; ids and weights are (rows, time).

        weights[:, t] belongs to the prediction of ids[:, t]; places of weight 0 are never scored.
        """
        states = self.hidden(ids[:, :-1], dtype)
        wanted = weights[:, 1:] > 0
        scores = self.logits(states[wanted], dtype)
        losses = F.cross_entropy(scores, ids[:, 1:][wanted], reduction="none")
        return (losses * weights[:, 1:][wanted]).sum()


def parameter_count(model: nn.Module) -> int:
    """Number of trained values."""
    return sum(p.numel() for p in model.parameters())
