"""Take-overs on recorded scores: `python -m experiments takeover --from FILE`. Is the promised share kept?

A line of the file is a question, `{"question": "…", "scores": [[-1.2, …], …]}`: the scores of its drafted segments by
round, the higher the better (of perplexities: with their sign turned). Calibrated on the questions at even places,
counted on those at odd places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plait.core.errors import UsageError
from plait_research.planners.takeover import p_value

from .._tools.statistics import Estimate

__all__ = ["main", "page_of", "shares"]

ALPHAS = (0.1, 0.2, 0.4)
LEAST = 20
"""Segments to calibrate on; rounds with fewer are left out."""
Asked = Sequence[Sequence[Sequence[float]]]
"""Scores by question and round."""


def shares(asked: Asked, turn: int, alpha: float) -> tuple[list[int], list[int]]:
    """Return for each held-out question the number of segments taken over in a round, and its total."""
    known = [score for question in asked[::2] if len(question) > turn for score in question[turn]]
    held_out = [question[turn] for question in asked[1::2] if len(question) > turn and question[turn]]
    if len(known) < LEAST:
        return [], []
    taken = [sum(p_value(score, known) <= alpha for score in scores) for scores in held_out]
    return taken, list(map(len, held_out))


def page_of(path: Path) -> str:
    """Return a page in Markdown. Raises `UsageError` for a file without scores."""
    try:
        asked = [json.loads(line)["scores"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UsageError(f'{path} cannot be read as lines of {{"question": …, "scores": [[…], …]}}: {error}') from None
    lines = [f"# Take-overs on {path.name}", "", f"{len(asked)} questions. 95 % intervals, questions resampled.", "",
             "| round | promised | taken over | segments |", "|---|---|---|---|"]  # fmt: skip
    rows = 0
    for turn in range(max(map(len, asked), default=0)):
        for alpha in ALPHAS:
            taken, of = shares(asked, turn, alpha)
            if of:
                rows += 1
                share = _drawn_anew(taken, of).percent()
                lines.append(f"| {turn + 1} | {100 * alpha:.0f} % | {share} | {sum(of)} |")
    if not rows:
        raise UsageError(f"{path} has no round with {LEAST} scores of questions at even places and one at an odd place")
    return "\n".join(lines) + "\n"


def _drawn_anew(taken: Sequence[int], of: Sequence[int]) -> Estimate:
    """Return the share of all segments with its interval, with whole questions resampled."""
    a, b, rng = np.asarray(taken), np.asarray(of), np.random.default_rng(0)
    picks = rng.integers(0, len(a), (2000, len(a)))
    low, high = np.quantile(a[picks].sum(1) / b[picks].sum(1), (0.025, 0.975))
    return Estimate(float(a.sum() / b.sum()), float(low), float(high))


def main() -> None:
    """Read the file and print the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments takeover", description=__doc__)
    parser.add_argument(
        "--from", type=Path, required=True, dest="file", metavar="FILE", help="scores, a question a line"
    )
    print(page_of(parser.parse_args().file))
