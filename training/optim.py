"""The optimizer: Muon for the matrices of the layers, AdamW for embeddings and norms.

Muon orthogonalises the momentum of each matrix with five Newton-Schulz steps; matrices of one shape are
done together in one batched product, since at this size the calls cost more than the arithmetic. The
learning rate comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly, to a stack (count, rows, columns)."""
    a, b, c = NEWTON_SCHULZ
    wide = stack.shape[1] > stack.shape[2]
    x = stack.transpose(1, 2) if wide else stack
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if wide else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; a parameter of shape (n, rows, columns) counts as n matrices."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients in place."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"]).reshape(-1, *p.shape[-2:])
                by_shape.setdefault(tuple(p.shape[-2:]), []).append((p, update))
            for (rows, columns), pairs in by_shape.items():
                stack = orthogonalise(torch.cat([update for _, update in pairs]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                at = 0
                for p, update in pairs:
                    part = stack[at : at + len(update)].reshape(p.shape)
                    p.mul_(1 - group["lr"] * group["decay"]).add_(part, alpha=-scale)
                    at += len(update)


def learning_rate(step: int, total: int, warmup: int, decay_share: float) -> float:
    """Factor 0..1 at a step: linear warm-up, then flat, then linear to 2 % over the last `decay_share` of
    all steps.
    """
    if step < warmup:
        return (step + 1) / warmup
    start = int(total * (1 - decay_share))
    if step < start:
        return 1.0
    return max(0.02, 1 - 0.98 * (step - start + 1) / max(1, total - start))
