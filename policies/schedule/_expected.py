"""What a step is expected to generate, by those like it that ended lately."""

from __future__ import annotations

from plait.core.view import StepView, View

SHARE = 0.3
"""Of what a step may generate: what it is expected to, before any like it has ended."""


def expected_tokens(step: StepView, view: View, quantile: float = 0.5) -> float:
    """Return how many tokens a step may be expected to generate yet: a quantile of the lengths of its like that are
    longer than what it has already."""
    known = step.tokens
    lengths = sorted(each.tokens for each in view.peers(step)[-64:] if each.tokens > known)
    if not lengths:
        return max(1.0, SHARE * (step.max_tokens - known))
    return lengths[min(len(lengths) - 1, int(quantile * len(lengths)))] - known
