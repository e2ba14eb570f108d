"""The latest steps of each template that ended in a value, of all runs: how long they took and what they generated.

A template is a planner, a step's name without its numbers, a model, a limit of tokens, and whether the step begins a
context: `sample-1` and `sample-7` of the same planner are one. For a call it is the tool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from statistics import median_low

from ..core.lengths import ENOUGH, LATEST, template
from ..core.view import AttemptEnd
from .records import Node, Records

REMEMBERED = 256
"""Ends of a template that are remembered."""
FIRST_SHARE, FIRST_LEAST = 32, 16
"""What is reserved before any end of a template: one in so many of the tokens that an attempt may generate, and at
least so many tokens."""


def add(node: Node, ended: AttemptEnd, records: Records) -> None:
    """Take note of an attempt that came to its end by itself."""
    wide, key = _keys(node)
    records.ended.setdefault(wide, deque(maxlen=REMEMBERED)).append(ended)
    if key is not None:
        records.ended.setdefault(key, deque(maxlen=REMEMBERED)).append(ended)
        node.run.lengths.setdefault(key, deque(maxlen=LATEST)).append(ended.tokens)
        records.medians.pop(key, None)


def like(node: Node, records: Records) -> Sequence[AttemptEnd]:
    """Return those of a step's template, the oldest first; where these are few, those of its model, limit and place in
    a context."""
    wide, key = _keys(node)
    ends = records.ended.get(key, ())
    return tuple(ends if len(ends) >= ENOUGH else records.ended.get(wide, ()))


def samples(node: Node, records: Records) -> list[Sequence[int]]:
    """Return lengths by which to expect that of a think step (`core.lengths`): its siblings', those of its template in
    all runs, and those of its model and limit, as far as there are any and they are needed."""
    wide, key = _keys(node)
    found: list[Sequence[int]] = []
    if key is not None and wide in records.ended:
        found.append(tuple(node.run.lengths.get(key, ())))
        for each in (key, wide):
            if len(found[-1]) < ENOUGH:
                found.append([ended.tokens for ended in records.ended.get(each, ())])
    return found


def reserved(node: Node, records: Records, most: int, known: int = 0) -> int:
    """Return how many tokens a budget keeps for an attempt at a think step, of `most` at most, when `known` of its
    tokens are there already: the median of its template.

    Lengths are skewed to the right: the median lies below the mean, so what many attempts reserve together is less than
    what they come to, and a run that fits into its budget is not held up by it. A higher quantile would start fewer
    attempts of a run that does not fit, and let more of them come to their end.
    """
    _, key = _keys(node)
    ends = records.ended.get(key)
    if not ends:
        return max(1, min(most, max(FIRST_LEAST, (most + known) // FIRST_SHARE) - known))
    median = records.medians.get(key)
    if median is None:
        median = records.medians[key] = median_low([each.tokens for each in ends][-LATEST:])
    return max(1, min(most, median - known))


def _keys(node: Node) -> tuple[Hashable, Hashable | None]:
    """Return what a step has in common with a wide class of steps, and with those of its template (think steps)."""
    step, op = node.step, node.step.op
    if op.kind != "think":
        return (op.tool if op.kind == "call" else None), None
    wide = op.model, op.sampling.max_tokens, op.after is None
    return wide, (node.run.request.planner.name, template(step.name), wide)
