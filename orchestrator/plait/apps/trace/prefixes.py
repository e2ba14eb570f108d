"""The prefix tree of a run: the stretches of context that its model calls share, and the call that computed each one.

A radix tree over the contexts (prompt, then output) of all model calls: token ids if the engine reported them, else
words. The cached part is the worker's reported count, from the start of each prompt. Prompts share a common beginning;
only a step that continues an output shares that output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...core.ops import Text, Tokens
from ...core.result import Result, Usage
from .model import Contact, Segment

Unit = int | str
_WORD = re.compile(r"\s*\S+|\s+")
_LOOKED_AT = 64
"""Maximum number of edges with the same beginning that are compared with a prompt that continues no context."""
_SHOWN = 2000
"""Characters of a segment's text that are kept; the steps hold the whole."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What one model call read and wrote."""

    step: str
    prompt: tuple[Text | Tokens, ...]
    """As it was sent, for servers that return no ids."""
    result: Result | None
    text: str
    """The streamed text, if there is no result."""
    usage: Usage
    line: frozenset[str] = frozenset()
    """The steps whose contexts it continues."""

    @property
    def has_ids(self) -> bool:
        """Whether the engine reported its token ids."""
        return self.result is not None and bool(self.result.prompt_ids)


@dataclass(slots=True, eq=False)
class _Branch:
    """A node of the growing tree. `units` are on the edge from its parent."""

    units: tuple[Unit, ...]
    start: int
    parent: _Branch | None
    maker: str | None = None
    """The step that generated these units; `None` for units of a prompt."""
    children: dict[Unit, list[_Branch]] = field(default_factory=dict[Unit, list["_Branch"]])
    id: int = -1


def prefix_tree(contexts: Sequence[CallContext]) -> tuple[list[Segment], Literal["tokens", "words"]]:
    """Return the tree's segments, parents before their children, and the unit their lengths are in.

    Contexts come in the order in which the calls began. If only some calls have ids, the other calls (cancelled before
    the engine's first report) branch off at the end of the ids that they were sent.
    """
    unit: Literal["tokens", "words"] = "tokens" if any(context.has_ids for context in contexts) else "words"
    laid = [_by_ids(context) if unit == "tokens" else _by_words(context) for context in contexts]
    root = _Branch((), 0, None)
    ends = [
        _write(_read(root, prompt, context.line), len(prompt), output, step)
        for context, (step, prompt, output, _) in zip(contexts, laid, strict=True)
    ]
    segments: list[Segment] = []
    _number(root, segments, unit == "words")
    for (step, prompt, output, cached), end in zip(laid, ends, strict=True):
        _touch(segments, end, step, cached, len(prompt), len(prompt) + len(output))
    return segments, unit


_Laid = tuple[str, tuple[Unit, ...], tuple[Unit, ...], int]
"""A step, its prompt and output in units, and the number of cached prompt units."""


def _by_ids(context: CallContext) -> _Laid:
    result, usage = context.result, context.usage
    if result is not None and result.prompt_ids:
        return context.step, result.prompt_ids, result.token_ids, min(usage.cached, len(result.prompt_ids))
    known: list[Unit] = []
    for part in context.prompt:
        if part.kind == "text":
            break  # its token ids are unknown
        known.extend(part.ids)
    unknown = max(0, usage.prompt - len(known))
    prompt = (*known, *(f"{context.step} {place}" for place in range(unknown)))
    output = tuple(f"{context.step} +{place}" for place in range(usage.completion))
    return context.step, prompt, output, min(usage.cached, len(prompt))


def _by_words(context: CallContext) -> _Laid:
    result, usage = context.result, context.usage
    units: list[Unit] = []
    for part in context.prompt:
        units.extend(_WORD.findall(part.text) if part.kind == "text" else part.ids)
    output = result.value if result is not None and isinstance(result.value, str) and result.value else context.text
    # A server counts its own tokens; assume the same cached share of the words.
    share = usage.cached / usage.prompt if usage.prompt else 0.0
    return context.step, tuple(units), tuple(_WORD.findall(output)), round(share * len(units))


def _read(root: _Branch, units: tuple[Unit, ...], line: frozenset[str]) -> _Branch:
    """Insert a prompt and return the node where it ends. An edge is split where the prompt diverges from others."""
    node, at = root, 0
    while at < len(units):
        child = _alike(node, units, at, line)
        if child is None:
            child = _Branch(units[at:], at, node)
            node.children.setdefault(units[at], []).append(child)
            return child
        common = _common(child.units, units, at)
        if common < len(child.units):
            child = _split(child, common)
        node, at = child, at + common
    return node


def _write(node: _Branch, at: int, units: tuple[Unit, ...], step: str) -> _Branch:
    """Insert an output as a separate edge, even beside an equal output: each was computed separately."""
    if not units:
        return node
    child = _Branch(units, at, node, step)
    node.children.setdefault(units[0], []).append(child)
    return child


def _alike(node: _Branch, units: tuple[Unit, ...], at: int, line: frozenset[str]) -> _Branch | None:
    """Return the child in which a prompt continues: an output of the step's own trajectory, else the longest match."""
    children = node.children.get(units[at], [])
    for child in children:
        if child.maker in line:
            return child
    return max(children[:_LOOKED_AT], key=lambda child: _common(child.units, units, at), default=None)


def _split(child: _Branch, common: int) -> _Branch:
    assert child.parent is not None
    upper = _Branch(child.units[:common], child.start, child.parent, child.maker)
    upper.children[child.units[common]] = [child]
    siblings = child.parent.children[upper.units[0]]
    siblings[siblings.index(child)] = upper
    child.units, child.start, child.parent = child.units[common:], child.start + common, upper
    return upper


def _common(edge: tuple[Unit, ...], units: tuple[Unit, ...], at: int) -> int:
    """Return the number of leading units of an edge that are equal to those of `units` from `at` on."""
    low, high = 1, min(len(edge), len(units) - at)  # the first is known to agree
    while low < high:
        middle = (low + high + 1) // 2
        if edge[low:middle] == units[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _number(root: _Branch, segments: list[Segment], readable: bool) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.units:
            node.id = len(segments)
            parent = node.parent.id if node.parent is not None and node.parent.units else None
            text = "".join(map(str, node.units[:_SHOWN]))[:_SHOWN] if readable else ""
            segments.append(Segment(node.id, parent, node.start, len(node.units), text=text))
        stack.extend(reversed([child for alike in node.children.values() for child in alike]))


def _touch(segments: list[Segment], end: _Branch, step: str, cached: int, prompt: int, whole: int) -> None:
    node: _Branch | None = end
    while node is not None and node.units:
        start, stop = node.start, node.start + len(node.units)
        read = _overlap(start, stop, 0, cached)
        computed = _overlap(start, stop, cached, prompt)
        generated = _overlap(start, stop, prompt, whole)
        segments[node.id].contacts.append(Contact(step, read, computed, generated))
        node = node.parent


def _overlap(start: int, stop: int, low: int, high: int) -> int:
    return max(0, min(stop, high) - max(start, low))
