"""Two models on the same held-out problems of five numbers: solved, tokens and critical path, compared in pairs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from ..compare import paired
from ..evaluate import wilson
from ..model import Llama
from .five import held_out
from .threads import Game, play

SEED = 2024
TEMPERATURES = (0.0, 1.0)


@dataclass
class Side:
    """One model at one temperature."""

    name: str
    temperature: float
    solved: list[bool]
    critical: list[int]
    total: list[int]
    threads: list[int]
    hits: list[int]


@dataclass
class Pair:
    """Both models at all temperatures, and the differences in shares solved with their 95 % intervals."""

    problems: int
    sides: list[Side] = field(default_factory=list[Side])
    differences: dict[str, tuple[float, float, float]] = field(default_factory=dict[str, "tuple[float, float, float]"])


def compare(before: Llama, after: Llama, problems: int, seed: int = 1) -> Pair:
    """Play the same problems with both, same seeds. `seed` 1 draws the problems of the page, another one others."""
    seed = SEED + seed - 1
    puzzles = held_out(problems, seed)
    pair = Pair(problems)
    for temperature in TEMPERATURES:
        sides = [
            _side(name, temperature, play(model, puzzles, temperature, seed))
            for name, model in (("before", before), ("after", after))
        ]
        pair.sides += sides
        pair.differences[f"T={temperature:g}"] = paired(sides[0].solved, sides[1].solved)
    return pair


def _side(name: str, temperature: float, games: list[Game]) -> Side:
    return Side(
        name,
        temperature,
        [game.solved for game in games],
        [game.critical for game in games],
        [game.total for game in games],
        [len(game.threads) for game in games],
        [sum(thread.hit for thread in game.threads) for game in games],
    )


def table(pair: Pair) -> str:
    """A table in Markdown."""
    lines = [
        "| model | T | n | solved (95 % interval) | critical path | total tokens | threads that hit |",
        "|---|---|---|---|---|---|---|",
    ]
    for side in pair.sides:
        n, solved = len(side.solved), sum(side.solved)
        low, high = wilson(solved, n)
        share = sum(side.hits) / max(1, sum(side.threads))
        lines.append(
            f"| {side.name} | {side.temperature:g} | {n} | {100 * solved / n:.1f} % ({100 * low:.1f}–{100 * high:.1f}) "
            f"| {statistics.fmean(side.critical):.0f} | {statistics.fmean(side.total):.0f} | {100 * share:.1f} % |"
        )
    for name, (more, low, high) in pair.differences.items():
        lines.append(
            f"\n{name}: after − before {100 * more:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}), paired."
        )
    return "\n".join(lines)
