"""Merge consecutive text deltas of an attempt."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ...core.events import Action, Expand, Progressed
from ...core.interfaces import Progress


def can_merge(first: Progressed, then: Progressed) -> bool:
    """Return whether two deltas can be merged: both have token ids, or neither has."""
    return bool(first.ids) == bool(then.ids) and (first.logprob is None) == (then.logprob is None)


def merge_deltas(at: float, attempt: int, deltas: Sequence[Progress | Progressed]) -> Progressed:
    """Return the deltas of an attempt as one event."""
    tokens, logprob = sum([delta.tokens for delta in deltas]), deltas[-1].logprob
    if logprob is not None and tokens:
        logprob = sum([(delta.logprob or 0.0) * delta.tokens for delta in deltas]) / tokens
    return Progressed(
        at,
        attempt,
        "".join([delta.text for delta in deltas]),
        tokens,
        logprob=logprob,
        ids=tuple(itertools.chain.from_iterable([delta.ids for delta in deltas])),
        group=next((delta.group for delta in reversed(deltas) if delta.group is not None), None),
        lowest=min([delta.lowest for delta in deltas if delta.lowest is not None], default=None),
        largest=_largest(deltas),
        reasoning="".join([delta.reasoning for delta in deltas]),
    )


def _largest(deltas: Sequence[Progress | Progressed]) -> int:
    if len(deltas) == 1:
        return 0
    return max(
        [
            getattr(delta, "largest", 0) or (max(delta.tokens, len(delta.ids)) if delta.ids else delta.tokens)
            for delta in deltas
        ]
    )


def join_actions(before: Sequence[Action], then: Sequence[Action]) -> list[Action]:
    """Return the actions of the merged deltas: one piece of text for the step's reader."""
    out = list(before)
    for action in then:
        last = out[-1] if out else None
        if isinstance(action, Expand) and isinstance(last, Expand) and action.delta and last.delta:
            out[-1] = replace(last, delta=last.delta + action.delta)
        else:
            out.append(action)
    return out
