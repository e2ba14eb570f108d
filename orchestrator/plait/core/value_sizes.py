"""Sizes of values before they are combined, and the cost of a plan, computed from its graph.

A value's size approximates its bytes of memory: one byte per character of a text, or four if not all are ASCII, plus an
overhead per number, text, list and object, which bounds their number. A join that passes its branches' values on makes
no copies, so each branch's value counts once, however often it occurs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pydantic import JsonValue

from .interfaces import Merge
from .ops import Join, ModelCall, ToolCall
from .plan import Plan, Step
from .request import Retries
from .values import Same

MOST_BYTES = 64 << 20
"""Default limit of bytes of the values that a run puts together."""
ATOM = 32
"""Size of a number, `true`, `false` and `null`; a number of many digits is larger."""
HULL = 64
"""Bytes of a text, a list or an object, without its content."""


class ValueSize(NamedTuple):
    """What a value weighs."""

    bytes: int
    levels: int = 0
    """Maximum nesting of lists and objects."""


def measure_value(value: JsonValue, known: Mapping[Same, ValueSize], most: int) -> ValueSize:
    """Return the size of a value; above `most`, any size greater than `most`.

    Args:
        value: any JSON value. known: sizes of lists and objects inside the value; these are not visited. most: where to
        stop.
    """
    if isinstance(value, str):
        return ValueSize(_text_size(value))
    total = deepest = 0
    todo: list[tuple[JsonValue, int]] = [(value, 0)]
    while todo and total <= most:
        item, depth = todo.pop()
        if isinstance(item, str):
            total += _text_size(item)
        elif isinstance(item, int):
            total += ATOM + item.bit_length() // 8
        elif isinstance(item, dict | list):
            weight = known.get(Same(item)) if known else None
            if weight is not None:
                total += weight.bytes
                deepest = max(deepest, depth + weight.levels)
                continue
            total += HULL + 8 * len(item)
            deepest = max(deepest, depth + 1)
            if isinstance(item, dict):
                total += sum(map(_text_size, item))
                todo += [(inner, depth + 1) for inner in item.values()]
            else:
                todo += [(inner, depth + 1) for inner in item]
        else:
            total += ATOM
    return ValueSize(total, deepest)


def _text_size(text: str) -> int:
    return HULL + (len(text) if text.isascii() else 4 * len(text))


class PlanCost(NamedTuple):
    """The cost of a plan."""

    steps: int
    bytes: int
    """Minimum total size of the values that the plan's steps combine, if all steps succeed; counting stops at the given
    limit."""
    tokens: int | None
    """Maximum number of generated tokens, including retries and hedges; `None` if its steps may plan more."""


def cost_of(plan: Plan, retries: Retries, most: int, merge_class: Callable[[str], type[Merge]]) -> PlanCost:
    """Return a plan's cost. Cycles are not detected; a need on a later step adds no cost.

    Args:
        plan: a whole plan, not a patch. retries: maximum number of retries per step. most: bytes at which counting
        stops. merge_class: returns a merge's class by name; the class declares whether the merge plans more steps.
    """
    least: dict[str, int] = {}
    put, tokens, open_ended = 0, 0, False
    for step in plan.steps:
        used = sum(times * least.get(name, 0) for name, times in count_mentions(step).items())
        put = min(put + used, most + 1)
        op = step.op
        merge = merge_class(op.merge.name) if isinstance(op, Join) else None
        least[step.name] = min(_minimum_size(step, used, merge), most + 1)
        if isinstance(op, ModelCall):
            tokens += 2 * (1 + retries.think + retries.lost) * (op.sampling.max_tokens + op.most_thoughts)
        open_ended |= step.expands or (merge is not None and merge.plans_more)
    return PlanCost(len(plan.steps), put, None if open_ended else tokens)


_NOTHING: Mapping[str, int] = MappingProxyType({})


def count_mentions(step: Step) -> Mapping[str, int]:
    """Return how often a step inserts each needed value; empty for a join that may close without some branches."""
    op = step.op
    if isinstance(op, ToolCall) and not op.args:
        return _NOTHING
    if isinstance(op, Join):
        every = op.on_failure == "all" and not op.early
        return Counter(dict.fromkeys(step.needs, 1)) if every else Counter()
    read = Counter(step.references())
    read.subtract(step.needs)  # to wait for a step is not to read it
    return +read


def _minimum_size(step: Step, used: int, merge: type[Merge] | None) -> int:
    """Return the minimum size of a step's value."""
    if step.expands:
        return ATOM
    if isinstance(step.op, ModelCall):
        return HULL
    return HULL + used if merge is not None and merge.collects else ATOM
