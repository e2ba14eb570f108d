"""Arithmetic sampling on logits: what is sampled from, and the token that a code stands for. Imported inside vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import torch  # noqa: TID253

from .._shared.arithmetic_codes import ArithmeticCode

__all__ = ["chosen", "restricted"]


def restricted(row: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return a row of logits, shape (vocabulary,), without the tokens that `top_k` and then `top_p` leave out, as
    vLLM's own sampler leaves them out."""
    if 0 < top_k < row.numel():
        row = row.masked_fill(row < row.topk(top_k).values[-1], float("-inf"))
    if top_p < 1.0:
        ordered, order = row.sort()
        out = ordered.softmax(-1).cumsum(-1) <= 1.0 - top_p
        out[-1] = False
        row = row.masked_fill(torch.zeros_like(out).scatter(0, order, out), float("-inf"))
    return row


def chosen(rows: torch.Tensor, codes: Sequence[ArithmeticCode]) -> torch.Tensor:
    """Return the token of each row, shape (lines,), for logits of shape (lines, vocabulary) in double precision, and
    take it off the codes."""
    sums = rows.softmax(-1).cumsum(-1).cummax(-1).values  # a parallel sum may fall by a rounding error
    sizes = torch.tensor([[float(code.range)] for code in codes], dtype=torch.float64, device=rows.device)
    values = torch.tensor([[float(code.value)] for code in codes], dtype=torch.float64, device=rows.device)
    thresholds = (sums / sums[:, -1:] * sizes).floor()
    tokens = torch.searchsorted(thresholds, values, right=True)
    high = thresholds.gather(1, tokens)
    low = torch.where(tokens > 0, thresholds.gather(1, (tokens - 1).clamp(min=0)), 0.0)
    for code, below, above in zip(codes, low[:, 0].tolist(), high[:, 0].tolist(), strict=True):
        code.take(int(below), int(above))
    return tokens[:, 0]
