"""Tables of the study `tools` beside its first: how much faster plans are and why, and where the time of a run goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from plait_bench.tasks.tables.language import read
from training.tables.questions import calls

from .._tools.statistics import mean
from .row import Row

__all__ = ["Shape", "every", "exactly", "faster", "from_calls", "ratios", "shape", "where"]


class Shape(NamedTuple):
    """What a question takes."""

    calls: int
    lookups: int
    depth: int
    """Look-ups on the longest chain; each needs the one before."""


Kept = Callable[[Shape], bool]


@lru_cache(maxsize=4096)
def shape(text: str) -> Shape:
    """Return the shape of a question."""
    made = calls(read(text))
    depths: list[int] = []
    for call in made:
        depths.append((call.tool == "lookup") + max((depths[place] for place in call.needs()), default=0))
    return Shape(len(made), sum(call.tool == "lookup" for call in made), max(depths))


def every(_: Shape) -> bool:
    """Whether a question counts: always."""
    return True


def from_calls(least: int) -> Kept:
    """Return a test for questions of at least this number of calls."""
    return lambda each: each.calls >= least


def exactly(count: int) -> Kept:
    """Return a test for questions of this number of calls."""
    return lambda each: each.calls == count


def faster(base: Mapping[str, Row], mine: Mapping[str, Row], chosen: Kept) -> str:
    """Return one way's speed-up over another, on questions of a shape that both answer rightly."""
    return _said(
        float(np.log(base[text].seconds / row.seconds))
        for text, row in mine.items()
        if row.right and text in base and base[text].right and chosen(shape(text))
    )


def _said(found: Iterable[float]) -> str:
    logs = list(found)
    if not logs:
        return "none"
    ratio = mean(logs)
    return f"{np.exp(ratio.value):.2f} ({np.exp(ratio.low):.2f}–{np.exp(ratio.high):.2f}), {len(logs)}"


def ratios(rows: Sequence[Row], conditions: Sequence[tuple[float, float]], deep: int) -> list[str]:
    """Return plans beside turns of one call and beside native turns, with what the look-ups alone would give."""
    shapes: dict[str, Kept] = {
        "all": every,
        f"from {deep} calls on": from_calls(deep),
        "look-ups in chains of 2 or more": lambda each: each.depth >= 2,
    }
    lines = [
        "Plans beside turns of one call, and beside native turns. *Look-ups alone*: what the ratio to `turns` would be "
        "if the model took no time: look-ups in all by those on the longest chain, over the same questions. Native "
        "turns make all calls that can be made at once, so look-ups alone would give 1 beside them.",
        "",
        f"| failing | a look-up takes | way | beside | {' | '.join(shapes)} | look-ups alone: all | "
        f"from {deep} calls on |",
        "|---" * (6 + len(shapes)) + "|",
    ]
    for failing, latency in conditions:
        chosen = [row for row in rows if (row.failing, row.latency) == (failing, latency)]
        by = {way: {row.text: row for row in chosen if row.way == way} for way in {row.way for row in chosen}}
        for base in ("turns", "native"):
            for way in ("llmcompiler", "last-task"):
                if base not in by or way not in by:
                    continue
                both = [text for text, row in by[way].items() if row.right and by[base].get(text, row).right]
                bounds = [
                    _said(float(np.log(shape(text).lookups / shape(text).depth)) for text in both if kept(shape(text)))
                    for kept in list(shapes.values())[:2]
                ]
                cells = [
                    f"{100 * failing:.0f} %", f"{1000 * latency:.0f} ms", f"`{way}`", f"`{base}`",
                    *(faster(by[base], by[way], kept) for kept in shapes.values()),
                    *([each.partition(" ")[0] for each in bounds] if base == "turns" else ["1", "1"]),
                ]  # fmt: skip
                lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def where(rows: Sequence[Row], conditions: Sequence[tuple[float, float]], ways: Sequence[str]) -> list[str]:
    """Return where the time of a run goes, in milliseconds."""
    lines = [
        "Where the time of a run goes, in ms (means): the model alone, the model writing while tools run, tools alone, "
        "neither; and the model's last call, which is part of these (the joiner of `llmcompiler`, the whole plan of "
        "`last-task`).",
        "",
        "| failing | a look-up takes | way | model alone | both | tools alone | neither | last call | model, in all |",
        "|---" * 9 + "|",
    ]
    for failing, latency in conditions:
        for way in ways:
            mine = [row.parts for row in rows if (row.failing, row.latency, row.way) == (failing, latency, way)]
            mine = [parts for parts in mine if parts]
            if not mine:
                continue
            means = {name: 1000 * float(np.mean([parts[name] for parts in mine])) for name in mine[0]}
            cells = [f"{100 * failing:.0f} %", f"{1000 * latency:.0f} ms", f"`{way}`"]
            cells += [f"{means[name]:.0f}" for name in ("model", "both", "tools", "neither", "joiner")]
            lines.append(f"| {' | '.join(cells)} | {means['model'] + means['both']:.0f} |")
    return [*lines, ""]
