"""How much values weigh, counted before they are put together; what a plan comes to, by its graph.

A value weighs about the bytes that it takes: of a text one for each character, or four where not all are ASCII, and
some more for each number, text, list and object, which bounds how many of these there are. A join that hands its
branches' values on makes no copies, so its value is weighed by those of its branches, however often they occur in it.
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
"""Of a number, `true`, `false` and `null`; a number of many digits has more."""
HULL = 64
"""Bytes of a text, a list or an object, without its content."""


class ValueSize(NamedTuple):
    """What a value weighs."""

    bytes: int
    levels: int = 0
    """Of lists and objects within one another."""


def measure_value(value: JsonValue, known: Mapping[Same, ValueSize], most: int) -> ValueSize:
    """Return the size of a value; above `most`, some size above that.

    Args:
        value: anything that JSON can say.
        known: sizes of lists and objects that may occur in it; they are not entered.
        most: where to stop.
    """
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
    """What a plan comes to."""

    steps: int
    bytes: int
    """What the values that its steps put together weigh at least, where all of them are done; not counted on beyond
    what was asked for."""
    tokens: int | None
    """Most tokens that it may generate, retries and hedges included; `None` where its steps may plan more."""


def cost_of(plan: Plan, retries: Retries, most: int, merge_class: Callable[[str], type[Merge]]) -> PlanCost:
    """Return a plan's cost. Cycles are not detected; a need on a later step counts as nothing.

    Args:
        plan: a whole plan, not a patch.
        retries: how often its steps may be tried.
        most: at how many bytes to stop counting.
        merge_class: finds the class of a merge by name, which declares whether it plans more.
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
    """Return how often each step's value is put into what a step makes; of a join that may close over some of its
    branches, none."""
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
