"""What any rule that stops a vote could save: by hindsight, and by learning from other votes when to stop."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.core.lengths import majority_probability
from plait.core.ops import Plugin
from plait.runtime.plugins.loader import Plugins

from .._tools.voters.sums import Drawn
from .recorded import Rows

__all__ = ["Moment", "bounds", "moments"]

Floats = NDArray[np.float64]
Verify = Callable[[int | None], bool | None]
WIDTHS = (4, 1)


class Moment(NamedTuple):
    """A vote when one more sample has ended."""

    answer: int | None
    """The first answer by votes; of equals that with the larger sum of log-probabilities."""
    sure: int | None
    """The answer whose votes' log-odds are largest together."""
    tokens: int
    """Generated so far, also in samples still running."""
    serial: int
    counts: tuple[float, ...]
    """What the votes say."""
    odds: tuple[float, ...]
    """What their log-probabilities add."""


def moments(drawn: Drawn, width: int) -> list[Moment]:
    """Return a vote's moments where `width` samples are in flight, one token of each a tick."""
    samples = drawn["samples"]
    waiting = list(enumerate(samples))[::-1]
    running: list[tuple[int, int, int]] = []
    begun: dict[int, int] = {}
    votes: dict[int, list[float]] = {}
    found: list[Moment] = []
    now = spent = 0
    while waiting or running:
        while waiting and len(running) < width:
            place, sample = waiting.pop()
            begun[place] = now
            heapq.heappush(running, (now + sample["tokens"], place, sample["tokens"]))
        now, place, tokens = heapq.heappop(running)
        spent += tokens
        del begun[place]
        answer, logprob = samples[place]["answer"], samples[place]["logprob"]
        if answer is not None:
            votes.setdefault(answer, []).append(logprob or 0.0)
        total = spent + sum(now - since for since in begun.values())
        found.append(_moment(votes, len(found) + 1, total, now))
    return found


def _moment(votes: Mapping[int, Sequence[float]], ended: int, tokens: int, serial: int) -> Moment:
    if not votes:
        return Moment(None, None, tokens, serial, (0.0,) * 5, (-5.0, -5.0, 0.0))
    ranked = sorted(votes, key=lambda key: (-len(votes[key]), -sum(votes[key])))
    a, b = len(votes[ranked[0]]), len(votes[ranked[1]]) if len(ranked) > 1 else 0
    best = {key: max(logs) for key, logs in votes.items()}
    odds = {key: sum(_log_odds(each) for each in logs) for key, logs in votes.items()}
    sure = max(odds, key=lambda key: odds[key])
    chance = min(majority_probability(a, b), 1 - 1e-6)
    counts = (float(np.log(chance / (1 - chance))), float(a), float(b), ended / 8, float(len(ranked)))
    others = [value for key, value in best.items() if key != sure]
    return Moment(ranked[0], sure, tokens, serial, counts, (best[sure], max(others, default=-5.0), odds[sure]))


def _log_odds(logprob: float) -> float:
    c = min(max(np.exp(min(0.0, logprob)), 1e-3), 1 - 1e-3)
    return float(np.log(c / (1 - c)))


def bounds(
    drawn: Sequence[Drawn], full: Rows, by_level: Mapping[int, NDArray[np.intp]], limit: float
) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of each bound, with its name."""
    plugins = Plugins()
    tasks = [plugins.task(Plugin(name="sums", options={"skill": each["level"]}), each["text"]) for each in drawn]
    for width in WIDTHS:
        told = [moments(each, width) for each in drawn]
        flight = "one at a time" if width == 1 else f"{width} in flight"

        def row(place: int, moment: Moment, answer: int | None) -> tuple[float, float, float]:
            right = answer is not None and tasks[place].verify(answer) is True
            return float(right), float(moment.tokens), float(moment.serial)

        for label, first in (("hindsight", True), ("hindsight, for good", False)):
            rows: list[tuple[float, float, float]] = []
            for place, each in enumerate(told):
                same = [moment.answer == each[-1].answer for moment in each]
                at = same.index(True) if first else len(same) - (*same[::-1], False).index(False)
                rows.append(row(place, each[at], each[at].answer))
            yield f"{label}, {flight}", np.array(rows)
        for label, by_odds in (("learnt from the counts", False), ("learnt from counts and log-probabilities", True)):
            found = np.zeros((len(drawn), 3))
            for at in by_level.values():
                halves = at[: len(at) // 2], at[len(at) // 2 :]
                for tuning, measured in (halves, halves[::-1]):
                    rule = _Learnt([told[i] for i in tuning], [tasks[i].verify for i in tuning], by_odds)
                    level = rule.level(
                        full[tuning], [told[i] for i in tuning], [tasks[i].verify for i in tuning], limit
                    )
                    for place in measured:
                        stop, answer = rule.stop(told[place], level)
                        found[place] = row(place, stop, answer)
            yield f"{label}, {flight}", found


class _Learnt:
    """A regression of whether the present answer is right (from log-probabilities too) or the full vote's (counts)."""

    def __init__(self, told: Sequence[Sequence[Moment]], right: Sequence[Verify], by_odds: bool) -> None:
        self._by_odds = by_odds
        x = np.concatenate([self._features(each) for each in told])
        if by_odds:
            labels = [verify(moment.sure) is True for each, verify in zip(told, right, strict=True) for moment in each]
        else:
            labels = [moment.answer == each[-1].answer for each in told for moment in each]
        y = np.array(labels, dtype=np.float64)
        self._mean, self._scale = x.mean(0), np.maximum(x.std(0), 1e-9)
        z = np.hstack([np.ones((len(x), 1)), (x - self._mean) / self._scale])
        weights = np.zeros(z.shape[1])
        penalty = 0.1 * np.eye(z.shape[1])
        for _ in range(30):
            p = 1 / (1 + np.exp(-np.clip(z @ weights, -30, 30)))
            curve = (z * (p * (1 - p))[:, None]).T @ z + penalty
            weights = weights + np.linalg.solve(curve, z.T @ (y - p) - penalty @ weights)
        self._weights = weights

    def _features(self, told: Sequence[Moment]) -> Floats:
        return np.array([(*each.counts, *each.odds) if self._by_odds else each.counts for each in told])

    def _chances(self, told: Sequence[Moment]) -> Floats:
        x = (self._features(told) - self._mean) / self._scale
        return 1 / (1 + np.exp(-np.clip(self._weights[0] + x @ self._weights[1:], -30, 30)))

    def stop(self, told: Sequence[Moment], level: float) -> tuple[Moment, int | None]:
        """Return when a vote ends, and with which answer."""
        enough = np.flatnonzero(self._chances(told) >= level)
        moment = told[int(enough[0])] if len(enough) else told[-1]
        return moment, moment.sure if self._by_odds else moment.answer

    def level(self, full: Rows, told: Sequence[Sequence[Moment]], right: Sequence[Verify], limit: float) -> float:
        """Return the chance at which to stop that saves most within the limit on these votes."""
        best, least = 2.0, np.inf
        for level in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999):
            stops = [self.stop(each, level) for each in told]
            solved = np.mean([verify(answer) is True for (_, answer), verify in zip(stops, right, strict=True)])
            tokens = sum(moment.tokens for moment, _ in stops)
            if solved - full[:, 0].mean() >= limit - 1e-9 and tokens < least:
                best, least = level, tokens
        return best
