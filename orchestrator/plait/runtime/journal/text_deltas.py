"""Merge consecutive text deltas of an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.events import Action, Expand, Progressed

__all__ = ["can_merge", "join_actions", "merge_deltas"]


def can_merge(first: Progressed, then: Progressed) -> bool:
    """Return whether two deltas can be merged: both have token ids, or neither has."""
    return bool(first.ids) == bool(then.ids) and (first.logprob is None) == (then.logprob is None)


def merge_deltas(first: Progressed, then: Progressed) -> Progressed:
    """Return both as one delta."""
    tokens = first.tokens + then.tokens
    logprob = then.logprob
    if first.logprob is not None and then.logprob is not None and tokens:
        logprob = (first.logprob * first.tokens + then.logprob * then.tokens) / tokens
    lows = [low for low in (first.lowest, then.lowest) if low is not None]
    return replace(
        then,
        text=first.text + then.text,
        reasoning=first.reasoning + then.reasoning,
        tokens=tokens,
        logprob=logprob,
        ids=(*first.ids, *then.ids),
        group=first.group if then.group is None else then.group,
        lowest=min(lows) if lows else None,
        largest=max(first.largest or _size(first), then.largest or _size(then)),
    )


def _size(news: Progressed) -> int:
    return max(news.tokens, len(news.ids))


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
