"""How much of an oracle's saving can any function of a Countdown puzzle's text reach?

How much of an oracle's saving any function of a Countdown puzzle's text can reach.

Greedy search is a function of the puzzle, so its length and that of threads are computed exactly: what a teacher of the
bundled model would write. On thousands of puzzles networks learn from the text alone which tiers to try in which order,
from the bundled scorer's probes of the first steps, and from probes of any quality, which are made of the truth and
noise. What they reach on puzzles held back is what `plait learn route` could reach with such features.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plait.runtime.client.config import BUNDLED_MODEL
from plait_research.route.features import features
from training.arithmetic.evaluate import values
from training.export import load
from training.generate import Trace, add_search
from training.task import MAX_TARGET, MIN_TARGET, Step, candidates, draw_numbers, reach

from .._tools.command import Given, command, command_of
from .._tools.statistics import Estimate, mean, saving, share

__all__ = ["Puzzle", "draw", "measured", "page_of", "run"]

PROBES = 8
"""First steps that are scored."""
ANSWER, LINE, ROUND = 14, 12, 10
"""Tokens of an answer, of a step before its search, and of a step in a round."""
LIMITS, WIDTHS, CONTEXT = (128, 256, 512), (4, 8), 512
QUALITIES = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
Matrix = NDArray[np.float64]


class Puzzle(NamedTuple):
    """A puzzle and what each tier does with it."""

    numbers: tuple[int, ...]
    target: int
    firsts: list[tuple[int, ...]]
    """Numbers after each of the first steps, in the order in which the search tries them."""
    solvable: list[float]
    """Of these: 1 where the target can be reached."""
    tiers: list[tuple[float, float]]
    """Right, and tokens: one line of 128, 256, 512 tokens at most; threads of 4 and of 8 a round, each round ending
    with its first hit."""


def draw(count: int, seed: int) -> list[Puzzle]:
    """Return puzzles that can be solved, with what becomes of them."""
    rng, out = random.Random(seed), list[Puzzle]()
    while len(out) < count:
        numbers = draw_numbers(rng, False)
        firsts = candidates(numbers)
        reached = [reach(step.numbers()) for step in firsts]
        targets = sorted({t for found in reached for t in found if MIN_TARGET <= t <= MAX_TARGET})
        if targets:
            target = rng.choice(targets)
            done = [_search(step, target) for step in firsts]
            tiers = [*(_line(done, limit) for limit in LIMITS), *(_threads(done, width) for width in WIDTHS)]
            first = [step.numbers() for step in firsts[:PROBES]]
            out.append(Puzzle(numbers, target, first, [float(hit) for hit, _ in done[:PROBES]], tiers))
    return out


def _search(step: Step, target: int) -> tuple[bool, int]:
    """Return whether a step leads to the target, and the tokens of the search that finds out."""
    trace = Trace([], [])
    found = add_search(trace, step.numbers(), target)
    return found is not None, len(trace.ids) + (LINE if found else 2)


def _line(done: Sequence[tuple[bool, int]], limit: int) -> tuple[float, float]:
    tokens = 0
    for hit, length in done:
        tokens += length + LINE
        if hit or tokens >= CONTEXT:
            return float(hit and tokens <= limit), min(tokens, limit)
    return 0.0, min(tokens, limit)


def _threads(done: Sequence[tuple[bool, int]], width: int) -> tuple[float, float]:
    tokens = 0
    for at in range(0, min(len(done), 3 * width), width):
        part = done[at : at + width]
        hits = [length for hit, length in part if hit]
        longest = min(hits) if hits else CONTEXT
        tokens += ROUND * len(part) + sum(min(length, longest) for _, length in part)
        if hits:
            return 1.0, tokens + ANSWER
    return 0.0, tokens


class Orders:
    """All orders of the tiers, dearer after cheaper, and what becomes of each puzzle by each."""

    def __init__(self, puzzles: Sequence[Puzzle]) -> None:
        tiers = np.array([each.tiers for each in puzzles])
        self.right, self.cost = tiers[:, :, 0], tiers[:, :, 1]
        count = tiers.shape[1]
        every = [order for size in range(1, count + 1) for order in combinations(range(count), size)]
        last = self.right[:, count - 1]
        outcomes = {order: self._outcome(order) for order in every}
        self.orders = [order for order, (right, _) in outcomes.items() if (right >= last - 1e-9).all()]
        """Those that lose nothing against always the last tier."""
        self.tokens: Matrix = np.stack([outcomes[order][1] for order in self.orders], axis=1)
        self.dear = self.cost[:, count - 1]
        self.oracle = np.where(self.right > 0, self.cost, np.inf).min(axis=1)

    def _outcome(self, order: Sequence[int]) -> tuple[Matrix, Matrix]:
        left, right = np.ones(len(self.cost)), np.zeros(len(self.cost))
        tokens = np.zeros(len(self.cost))
        for tier in order:
            tokens += left * self.cost[:, tier]
            right += left * self.right[:, tier]
            left = left * (1 - self.right[:, tier])
        return right, tokens

    def saved(self, tokens: Matrix, at: NDArray[np.int64]) -> float:
        """Share of the oracle's saving, wrong answers being noticed."""
        return float((self.dear[at].mean() - tokens.mean()) / (self.dear[at].mean() - self.oracle[at].mean()))


def learned(orders: Orders, given: Matrix, hidden: int, seed: int = 0) -> Matrix:
    """Return the tokens of each puzzle of the last quarter by a network that predicts each order's tokens and takes the
    least: fitted to 64 % of the puzzles, stopped by 11 %."""
    torch.manual_seed(seed)
    count = len(given)
    fit, stop = np.arange(int(count * 0.64)), np.arange(int(count * 0.64), int(count * 0.75))
    test = np.arange(int(count * 0.75), count)
    mean, spread = given[fit].mean(axis=0), given[fit].std(axis=0) + 1e-6
    x = torch.tensor((given - mean) / spread, dtype=torch.float32)
    y = torch.tensor(orders.tokens / orders.dear.mean(), dtype=torch.float32)
    net: nn.Module = nn.Linear(x.shape[1], y.shape[1])
    if hidden:
        layers = nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU()
        net = nn.Sequential(*layers, nn.Linear(hidden, y.shape[1]))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    best, reached = math.inf, orders.dear[test]
    for _ in range(40):
        net.train()
        for part in torch.randperm(len(fit)).split(256):
            loss = ((net(x[part]) - y[part]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        net.eval()
        with torch.no_grad():
            chosen = net(x).argmin(dim=1).numpy()
        if (spent := orders.tokens[stop, chosen[stop]].mean()) < best:
            best, reached = spent, orders.tokens[test, chosen[test]]
    return reached


def _text(puzzle: Puzzle) -> str:
    return f"{' '.join(map(str, puzzle.numbers))} -> {puzzle.target}"


def _more(puzzle: Puzzle) -> list[float]:
    """What a person might look at: how far the target is, what divides it."""
    numbers, target = puzzle.numbers, puzzle.target
    whole = sum(numbers)
    nearest = [abs(target - each) / 50 for each in numbers]
    products = min(abs(target - a * b) for a in numbers for b in numbers) / 50
    divides = [float(target % each == 0) for each in numbers]
    return [(target - whole) / 50, abs(target - whole) / 50, products, target / max(numbers), *nearest, *divides]


def _words(puzzle: Puzzle) -> list[float]:
    """Each number and the target as a word of its own: all that the text has."""
    counts = [float(puzzle.numbers.count(number)) for number in range(1, 26)]
    return [*counts, *(float(puzzle.target == target) for target in range(MIN_TARGET, MAX_TARGET + 1))]


DEAR, ORACLE = "always threads of 8", "the oracle"


def measured(count: int, seed: int) -> Iterator[tuple[str, Matrix]]:
    """Yield what each choice spends on each puzzle of the last quarter, by its name; then what the tiers come to."""
    puzzles = draw(count, seed)
    orders = Orders(puzzles)
    now = np.array([list(features(_text(each)).values()) for each in puzzles])
    more, words = np.array([_more(each) for each in puzzles]), np.array([_words(each) for each in puzzles])
    truth = np.array([[*each.solvable, *[0.0] * (PROBES - len(each.solvable))] for each in puzzles])
    noise = np.random.default_rng(seed).normal(size=truth.shape)
    model = load(Path(BUNDLED_MODEL).with_name("arithmetic"))
    asked = [(numbers, each.target) for each in puzzles for numbers in each.firsts]
    scores = iter(values(model, asked))
    probes = np.zeros_like(truth)
    for row, each in zip(probes, puzzles, strict=True):
        for place in range(len(each.firsts)):
            chance = next(scores)
            row[place] = math.log((chance + 1e-4) / (1 - chance + 1e-4))
    test = np.arange(int(count * 0.75), count)
    fixed = int(orders.tokens[: int(count * 0.64)].mean(axis=0).argmin())
    both = np.hstack([probes, now, more])
    yield "one order for all", orders.tokens[test, fixed]
    yield "features of `route fit`, linear", learned(orders, now, 0)
    yield "features of `route fit`, a network", learned(orders, now, 128)
    yield "all of the text, a network", learned(orders, np.hstack([now, words]), 256)
    yield "the text and arithmetic by hand, a network", learned(orders, np.hstack([now, more]), 128)
    yield f"the bundled scorer's probes of {PROBES} first steps, a network", learned(orders, probes, 128)
    yield "probes, text and arithmetic, a network", learned(orders, both, 128)
    for quality in QUALITIES:
        shift = math.sqrt(2) * NormalDist().inv_cdf(quality)
        given = np.hstack([truth * shift + noise, now, more])
        yield f"probes of AUROC {quality:g} and the text, a network", learned(orders, given, 128)
    yield "probes that know, and the text, a network", learned(orders, np.hstack([truth, now, more]), 128)
    yield DEAR, orders.dear[test]
    yield ORACLE, orders.oracle[test]
    for place, name in enumerate([*(f"one line of {each}" for each in LIMITS), *(f"threads of {w}" for w in WIDTHS)]):
        yield f"{name}, right", orders.right[test, place]
        yield f"{name}, tokens", orders.cost[test, place]


def page_of(rows: Mapping[str, Sequence[float]], command: str, count: int) -> str:
    """Return the page as Markdown."""
    dear, oracle = rows[DEAR], rows[ORACLE]
    tiers = [name.removesuffix(", right") for name in rows if name.endswith(", right")]
    of_tiers = {f"{tier}, {what}" for tier in tiers for what in ("right", "tokens")}
    ways = [name for name in rows if name not in {DEAR, ORACLE, *of_tiers}]
    lines = [
        "# How much of an oracle's saving can be had from a puzzle's text", "", f"`{command}`", "",
        f"{count:,} four-number puzzles with the exact lengths of greedy search and of threads, as a model without "
        f"faults would write them. All figures are of the last quarter ({len(dear):,}), which nothing was fitted to; "
        "95 % intervals, puzzles resampled. Wrong answers are noticed, no order loses one. Greedy runs have no noise: "
        "**the oracle is a function of the puzzle, but one that has to know which first step leads to the target**, "
        "which is to have solved it.", "",
        "| tier | solved | tokens |", "|---|---|---|",
        *(f"| {name} | {share(rows[f'{name}, right']).percent()} | {mean(rows[f'{name}, tokens']).number()} |"
          for name in tiers),
        f"| {DEAR} | | {mean(dear).number()} |", f"| {ORACLE} | | {mean(oracle).number()} |", "",
        "| what the choice is made by | of the oracle's saving |", "|---|---|",
        *(f"| {name} | {_of_the_oracle(dear, rows[name], oracle).percent()} |" for name in ways), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _of_the_oracle(dear: Sequence[float], spent: Sequence[float], oracle: Sequence[float]) -> Estimate:
    """Return the tokens saved, divided by those that the oracle saves; puzzles resampled."""
    a, b = np.asarray(dear) - np.asarray(spent), np.asarray(dear) - np.asarray(oracle)
    return saving(b - a, b)


def run(given: Given) -> str:
    """Compute the rows, write the page, and return it."""
    config = given.common.load()
    path = given.kept("effort_limit", config.seed)
    if not given.report:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as out:
            for name, values in measured(given.problems, config.seed):
                out.write(json.dumps({"name": name, "values": [round(each, 6) for each in values.tolist()]}) + "\n")
    found = given.rows(path)
    rows = {row["name"]: row["values"] for row in map(json.loads, found.lines)}
    command = command_of("effort_limit", config, given.problems)
    return given.write(page_of(rows, command, given.problems), found)


def main() -> None:
    """Compute it: there is no model in it."""
    command("effort_limit", run, problems=8000)
