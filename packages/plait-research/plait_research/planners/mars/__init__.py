"""Planner `mars`: a vote that ends while its lines are still being written, once their answers so far are safe."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue, field_validator

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context, Flow, Trajectory
from plait.core.ops import Plugin
from plait.core.vocabulary import MergeOption, N, Records, Warmup
from plait.planners._shared.steps import derive

from ...learning_planner import LearningPlanner, RunOutcome

__all__ = ["Mars"]


Floats = NDArray[np.float64]
LEAST = 0.5
"""Least share of the worst case that calibration may come to."""


class Look(NamedTuple):
    """An unfinished trajectory's answer to a probe."""

    key: str | None
    """Of the answer; `None`: it had none."""
    sure: float
    """Mean log-probability (nats) of what it said."""


class LineLooks(NamedTuple):
    """A line: its looks, and the answer that it ended in."""

    looks: Sequence[Look]
    final: str | None = None

    def features(self, at: int) -> list[float]:
        """Return the five features of a look: position, sureness, changes so far, looks since the last one, trend."""
        keys = [look.key for look in self.looks[: at + 1]]
        changes = [i for i in range(1, at + 1) if keys[i] != keys[i - 1]]
        trend = self.looks[at].sure - self.looks[at - 1].sure if at else 0.0
        return [float(at), self.looks[at].sure, float(len(changes)), float(at + 1 - max(changes, default=0)), trend]


class Switching:
    """P(a line ends in another answer than it gives now), a logistic regression on the features of a look."""

    def __init__(self, lines: Sequence[LineLooks], records: Sequence[Sequence[float]] = ()) -> None:
        """Fit finished lines, with a penalty of 0.01 on the squared weights of the scaled features. Lines that all
        switched, or none did, teach a rate alone: (s + 1) / (m + 2) for s of m looks. `records` are looks of earlier
        runs, as `looks_of` makes them."""
        rows = [([*row[:-1]], row[-1]) for row in (*records, *to_features(lines))]
        right: Floats = np.array([label for _, label in rows], dtype=np.float64)
        self.rate = (float(right.sum()) + 1) / (len(rows) + 2)
        self._weights: Floats | None = None
        if not 0 < right.sum() < len(rows):
            return
        x: Floats = np.array([features for features, _ in rows], dtype=np.float64)
        self._mean, self._scale = x.mean(0), np.maximum(x.std(0), 1e-10)
        x = np.hstack([np.ones((len(x), 1)), (x - self._mean) / self._scale])
        penalty = np.diag([0.0] + [0.02] * (x.shape[1] - 1))
        weights: Floats = np.zeros(x.shape[1])
        for _ in range(50):  # Newton's method
            p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
            slope = x.T @ (right - p) - penalty @ weights
            curve = (x * (p * (1 - p))[:, None]).T @ x + penalty + 1e-9 * np.eye(x.shape[1])
            step = np.linalg.solve(curve, slope).astype(np.float64)
            weights = weights + step * min(1.0, 5.0 / max(1e-12, float(np.abs(step).max())))
            if float(np.abs(step).max()) < 1e-8:
                break
        self._weights = weights

    def of(self, seen: LineLooks) -> float:
        """Return the chance that a line switches after its last look; the rate of all for one that had no look."""
        if self._weights is None or not seen.looks:
            return self.rate
        x = (np.array(seen.features(len(seen.looks) - 1)) - self._mean) / self._scale
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, float(self._weights[0] + x @ self._weights[1:])))))


def to_features(lines: Sequence[LineLooks]) -> list[list[float]]:
    """Return the looks of finished lines as numbers: the five features, and 1 where the line ended in another answer,
    else 0."""
    return [[*seen.features(at), float(look.key != seen.final)] for seen in lines for at, look in enumerate(seen.looks)]


def find_leader(votes: Counter[str]) -> str | None:
    """Return the answer with the most votes, the first to be counted of equals."""
    return max(votes, key=lambda key: votes[key]) if votes else None


def is_safe(votes: Counter[str], active: Sequence[tuple[str | None, float]], gamma: float = 1.0) -> bool:
    """Whether the first answer L stays first: for each other answer k, and for one that nobody has given yet,
    V_L - V_k > sum of q c over the `active` lines that have an answer, each with its chance q of switching.

    The cost c of a line that switches is 2 gamma for one that says L (L loses a vote, and at worst k gains it), -1 for
    one that says k, gamma for any other.
    """
    first = find_leader(votes)
    if first is None:
        return False
    likely = [(key, q) for key, q in active if key is not None]
    return all(
        votes[first] - votes[other]
        > math.fsum(q * (-1.0 if key == other else gamma * (2.0 if key == first else 1.0)) for key, q in likely)
        for other in [*(key for key in votes if key != first), ""]
    )


def calibrate(lines: Sequence[LineLooks]) -> float:
    """Return gamma for finished lines: the least of 1, 0.9, … 0 down to which a stop by `safe` among these lines alone
    gives the answer that it gives at 1, plus 1 / sqrt of the lines with an answer at the look where it stopped at 1; at
    least 0.5, at most 1. The chance of switching is the truth here: whether the line did. Fewer than four lines that
    ended in an answer teach nothing."""
    ended = [seen for seen in lines if seen.final is not None]
    looks = max((len(seen.looks) for seen in ended), default=0)
    if len(ended) < 4 or not looks:
        return 1.0
    reference, band, open_then = "", 1.0, 1
    for tenth in range(10, -1, -1):
        stopped_at, answered = _replay_stop(ended, looks, tenth / 10)
        if tenth == 10:
            reference, open_then = stopped_at, answered
        if stopped_at != reference:
            break
        band = tenth / 10
    return round(max(LEAST, min(1.0, band + 1 / math.sqrt(max(1, open_then)))), 2)


def _replay_stop(lines: Sequence[LineLooks], looks: int, gamma: float) -> tuple[str, int]:
    """Return the first answer at the first look at which `safe` holds, or else of the whole vote, and how many lines
    had an answer at that look, or the last. Of equals the answer is first that ended a line first."""
    finals = [seen.final for seen in lines]
    keys = (*finals, *(look.key for seen in lines for look in seen.looks))
    order = dict.fromkeys([key for key in keys if key is not None], 0)
    answered = 0
    for at in range(looks):
        now = [(seen.looks[at].key if at < len(seen.looks) else seen.final, seen.final) for seen in lines]
        votes = Counter(order)
        votes.update(key for key, _ in now if key is not None)
        answered = votes.total()
        if answered and is_safe(votes, [(key, float(key != final)) for key, final in now], gamma):
            return find_leader(votes) or "", answered
    votes = Counter(order)
    votes.update(key for key in finals if key is not None)
    return find_leader(votes) or "", answered


class SteadyVote:
    """Decides when a vote of unfinished samples is stable, and which samples have left it: the controller of
    Parallel-Probe (Zheng et al., 2026), with the settings of its authors.

    After `warmup` probes the vote may end once the same answer was first in `stable` probes in a row. A sample that
    gives another answer in `patience` probes in a row is cancelled. Of answers with equal votes, the one that a sample
    gave first is first.
    """

    def __init__(self, lines: int, stable: int = 3, warmup: int = 4, patience: int = 2) -> None:
        self.left = [False] * lines
        """The cancelled trajectories."""
        self._stable, self._warmup, self._patience = stable, warmup, patience
        self._off = [0] * lines
        self._first: str | None = None
        self._looks = self._same = 0

    def ends(self, keys: Sequence[str | None]) -> bool:
        """Take what each line answers at a look (`None`: nothing); return whether the vote may end."""
        counted = [key if not left else None for key, left in zip(keys, self.left, strict=True)]
        first = find_leader(Counter(key for key in counted if key is not None))
        self._same = self._same + 1 if first is not None and first == self._first else 1
        self._first, at = first, self._looks
        self._looks += 1
        if at < self._warmup:
            return False
        for place, key in enumerate(counted):
            self._off[place] = 0 if key is None or key == first else self._off[place] + 1
            self.left[place] = self.left[place] or self._off[place] >= self._patience
        return first is not None and self._same >= self._stable


_OPEN, _CLOSE = "<think>", "</think>"
_KEPT = 2000
"""Looks that are kept, the newest."""
_IN_THOUGHTS = " There is no time left: I answer by what I have.\n</think>\n\n\\boxed{"


@dataclass(slots=True)
class _Sample:
    """One running sample."""

    number: int
    line: Trajectory | None = None
    """Its last part; `None` before the first, and if the first failed."""
    probe: Trajectory | None = None
    """The question for its answer after that part."""
    looks: list[Look] = field(default_factory=list[Look])
    tokens: int = 0
    done: bool = False
    final: str | None = None

    @property
    def seen(self) -> LineLooks:
        return LineLooks(self.looks, self.final)


class Mars(LearningPlanner, Flow):
    """Margin-Adversarial Risk-controlled Stopping (MARS, arXiv 2606.12935).

    Samples write in parts of `draft` tokens. After each part, a probe asks every unfinished sample for its answer so
    far, in a few greedy tokens behind its own context. The first `warmup` samples run to their ends. They train a
    logistic regression that predicts whether an answer so far will change (by position, confidence, changes, probes
    since the last change, and trend), and set how much of the worst case counts. All others stop together as soon as
    the first answer would stay first even if the answers that are likely to change changed for the worst. Finished
    samples vote with their answers, unfinished ones with their last probe.

    Differs from the authors' code: the warm-up votes too; a finished sample cannot change, where the authors give it
    the regression's probability; confidence comes from the probe, not from the sample's last tokens; the regression is
    not rescaled after its fit (Platt), which on the same few samples is nearly the identity. A probe costs the tokens
    of `probe` and its prefill, which pays where samples are much longer than a part. Defaults: 32 samples, 16 of them
    warm-up as in the paper, 500 tokens between probes.
    """

    fidelity = Fidelity(
        "variant",
        "the warm-up votes, and what has ended cannot switch",
        oracles=("mars-stop", "mars-gamma", "mars-switch", "parallel-probe"),
        paper="2606.12935",
    )
    lost_in = ("erring_votes",)

    draft: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=500),
        description="A part of a sample, between two checks. Unset fields have the values of `answer`.",
    )
    answer: Annotated[CallConfig, Uses("question")] = Field(
        default=CallConfig(max_tokens=4096, temperature=1.0),
        description="The samples; `max_tokens` are those of a whole one. Their template has `{question}`.",
    )
    probe: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(thinking="off", max_tokens=8, temperature=0.0, logprobs=1),
        description="The question for a sample's answer so far, after what it has written. By default, where a "
        "text's thoughts are not over, it ends them and opens a box, as the authors' does.",
    )
    n: N = 32
    warmup: Warmup = Field(default=16, ge=2)
    criterion: Literal["safe", "steady"] = Field(
        default="safe",
        description="Criterion for ending samples. `safe`: the rule above. `steady`: that of Parallel-Probe, with "
        "which MARS' authors compare: all samples go on side by side, without a warm-up, those that disagree with the "
        "first answer for long are given up, and all end when it stays first.",
    )
    merge: MergeOption = Plugin(name="majority")
    records: Records = Field(
        default=(),
        description="Records of earlier runs, which set thresholds. Looks of lines that ended: five "
        "features and whether the line switched. They teach beside the warm-up, which may then be short (`warmup=4`).",
    )

    @field_validator("records")
    @classmethod
    def _looks(cls, records: Records) -> Records:
        if any(len(record) != 6 for record in records):
            raise ValueError("a record is five features of a look, and 1 where its line switched, else 0")
        return records

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Run the warm-up, then the others until they are safe; return the vote."""
        samples = [_Sample(i) for i in range(1, self.n + 1)]
        if self.criterion == "steady":
            return await self._steady(ctx, samples)
        warm, rest = samples[: self.warmup], samples[self.warmup :]
        while await self._advance(ctx, warm):
            pass
        taught = [sample.seen for sample in warm if sample.line is not None]
        switching = Switching(taught, self.records)
        gamma = calibrate(taught)
        reference = find_leader(Counter(seen.final for seen in taught if seen.final is not None))
        why, first = "all samples have ended", True
        while await self._advance(ctx, rest):
            active = [(sample.looks[-1].key, switching.of(sample.seen)) for sample in rest if not sample.done]
            answers = [sample.final for sample in samples if sample.done] + [key for key, _ in active]
            votes = Counter(key for key in answers if key is not None)
            if is_safe(votes, active, gamma) and (not first or find_leader(votes) == reference):
                why = f"{votes.most_common(1)[0][1]} of {sum(votes.values())} votes, safe from {len(active)} unfinished"
                break
            first = False
        return self._vote(ctx, samples, why)

    async def _steady(self, ctx: Context, samples: Sequence[_Sample]) -> Answerable:
        """Run all samples until their first answer stays first, without those that leave it; return the vote."""
        rule, why = SteadyVote(len(samples)), "all samples have ended"
        going = list(samples)
        while await self._advance(ctx, going):
            answers = [sample.final if sample.done else sample.looks[-1].key for sample in samples]
            over = rule.ends(answers)
            going = [sample for sample, left in zip(samples, rule.left, strict=True) if not left]
            if over:
                why = f"steady, {sum(not sample.done for sample in going)} unfinished"
                break
        return self._vote(ctx, going, f"{why}, {len(samples) - len(going)} given up" if going != samples else why)

    def _vote(self, ctx: Context, samples: Sequence[_Sample], why: str) -> Answerable:
        voters = [sample.line if sample.done or sample.probe is None else sample.probe for sample in samples]
        present = [voter for voter in voters if voter is not None]
        vote = ctx.join(present, self.merge, on_failure="best-effort", name="vote", label=f"{self.merge.name}: {why}")
        if not self.learn:
            return vote
        # What was stopped did not end in an answer, and teaches nothing.
        ended = [sample.seen for sample in samples if sample.done and sample.final is not None]
        return ctx.answer(vote, data={"looks": cast("JsonValue", to_features(ended))}, name="answered")

    def learned(self, outcome: RunOutcome) -> dict[str, JsonValue]:
        """Return the records with the looks of a run; whether its answer was right does not matter."""
        match outcome.data:
            case {"looks": [*looks]} if looks:
                made = [[float(cast("float", number)) for number in cast("list[JsonValue]", look)] for look in looks]
                return {"records": cast("JsonValue", [*map(list, self.records), *made][-_KEPT:])}
            case _:
                return {}

    async def _advance(self, ctx: Context, samples: Sequence[_Sample]) -> bool:
        """Write the next part of each unfinished sample and check those that continue; return whether any does."""
        task = ctx.brief.task
        asked = [sample for sample in samples if not sample.done]
        parts = [self._part(ctx, sample) for sample in asked]
        await ctx.gather(*parts, return_exceptions=True)
        for sample, part in zip(asked, parts, strict=True):
            if not part.done:
                sample.done = True  # its last part stands, if there is one
                continue
            sample.line, sample.tokens = part, sample.tokens + part.tokens
            sample.done = part.result.finish != "length" or sample.tokens >= self._whole
            if sample.done:
                answer = task.extract(part.line)
                sample.final = None if answer is None else task.key(answer)
        open_now = [sample for sample in asked if not sample.done]
        probes = [self._probe(sample) for sample in open_now]
        await ctx.gather(*probes, return_exceptions=True)
        for sample, probe in zip(open_now, probes, strict=True):
            sample.probe = probe if probe.done else None
            # what the question opened, such as a box, belongs to the answer
            answer = task.extract(self._question(sample) + probe.text) if probe.done else None
            sure = probe.logprob if probe.done else None
            sample.looks.append(Look(None if answer is None else task.key(answer), sure or 0.0))
        return bool(open_now)

    @property
    def _whole(self) -> int:
        return self.answer.max_tokens or 512

    def _part(self, ctx: Context, sample: _Sample) -> Trajectory:
        number, draft = len(sample.looks), self.draft.over(self.answer)
        pieces = draft.parts("{question}", question=ctx.brief.task.render()) if sample.line is None else ()
        think = ctx.think if sample.line is None else sample.line.think
        name = f"sample-{sample.number}" + (f"-{number + 1}" if number else "")
        return think(
            pieces,
            draft,
            name=name,
            label=f"sample {sample.number}" + (f", part {number + 1}" if number else ""),
            max_tokens=min(draft.max_tokens or self._whole, self._whole - sample.tokens),
            seed=derive(ctx.brief.request.seed, name) if draft.temperature != 0 else None,
        )

    def _question(self, sample: _Sample) -> str:
        """Return what a sample is asked, which ends its thoughts where it is in the midst of them."""
        thinks = sample.line is not None and sample.line.line.rfind(_OPEN) > sample.line.line.rfind(_CLOSE)
        return self.probe.text(_IN_THOUGHTS if thinks else "\n\nSo the answer is")

    def _probe(self, sample: _Sample) -> Trajectory:
        assert sample.line is not None
        number = len(sample.looks) + 1
        pieces = self._question(sample)
        return sample.line.think(pieces, self.probe, name=f"probe-{sample.number}-{number}", label="answer so far")
