"""How many tokens the prompt of an attempt has, where a budget limits them: counted by a worker, or estimated.

What is known stays known: that workers counted or reported it, by prompt, so 32 branches of one prompt are one question
to a worker. An estimate is a token for every four characters until a worker of the run has reported what a prompt came
to, and from then on that rate.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

from ..core.ops import Text, Think, Tokens
from ..core.result import Usage
from .assemble import resolve
from .records import Attempt, Node, WorkerState

_SHORTEST = 40
"""Characters of a prompt that say something about others."""


class Size(NamedTuple):
    """Tokens of a prompt."""

    tokens: int
    estimated: bool = False


def size(node: Node, worker: WorkerState, known: int, *, ask: bool) -> Size | Think:
    """Return the size of a think step's prompt for an attempt that goes on from `known` tokens; with `ask` perhaps the
    operation, of which the worker is to count it first."""
    op = resolve(node, 1)
    assert op.kind == "think"
    found = node.run.prompts.get(_key(op))
    if found is not None:
        return Size(found + known)
    parts = _parts(op)
    if not op.chat and all(part.kind == "tokens" and part.within is None for part in parts):
        return Size(sum(_length(part, 0) for part in parts) + known)
    if ask and worker.counts_tokens:
        return op
    rate = node.run.per_character
    return Size(sum(_length(part, rate) for part in parts) + known, True)


def counted(node: Node, tokens: int) -> None:
    """Take note of what a worker has counted."""
    op = resolve(node, 1)
    assert op.kind == "think"
    node.run.prompts[_key(op)] = tokens


def reported(attempt: Attempt, usage: Usage) -> None:
    """Take note of what a prompt came to by the report of the worker that read it."""
    node, known = attempt.node, len(attempt.resumed_from.ids) if attempt.resumed_from is not None else 0
    op = resolve(node, 1)
    if op.kind != "think" or usage.prompt <= known:
        return
    node.run.prompts[_key(op)] = usage.prompt - known
    parts = _parts(op)
    characters = sum(len(part.text) for part in parts if part.kind == "text")
    if characters >= _SHORTEST and all(part.kind == "text" for part in parts):
        node.run.per_character = (usage.prompt - known) / characters


def _key(op: Think) -> Hashable:
    parts = tuple(part.text if part.kind == "text" else (part.ids, part.within) for part in _parts(op))
    return op.model, op.chat, op.begin, tuple(each.name for each in op.tools), parts


def _parts(op: Think) -> list[Text | Tokens]:
    """Return the whole prompt, the messages of a conversation included."""
    begin = (Text(text=op.begin),) if op.begin else ()
    return [part for part in (*op.parts, *begin) if part.kind != "ref"]


def _length(part: Text | Tokens, rate: float) -> int:
    if part.kind == "text":
        return math.ceil(len(part.text) * rate)
    return len(part.ids) if part.within is None else min(len(part.ids), math.ceil(len(part.within) * (rate or 1)))
