"""Does branching where the model was unsure find more than branching at random? Scripted, at equal tokens.

Planner `partial-rollout`: branching where the model was unsure against random and uniform turns, at equal tokens.

The model is scripted. A question takes 8 decisions, a call each. One of them is hard (right with probability 0.15), the
others are easy (0.99); the answer is right if all are. The call that reads the reports gives each different answer a
mark, 1 for the right one and 0 for others with noise of deviation 0.5, and takes the best. How unsure a turn is has
the correlation rho with how hard its decision is; the rest is noise. With rho = 0 it tells nothing, and branching by it
must win nothing. Baselines are read off at the tokens of the contender, on the line between two numbers of branches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from plait.core.events import Job
from plait.core.ops import ModelCall, Text, ToolCall
from plait.core.request import Request
from plait.core.result import Result, Signals, Usage
from plait.core.tools.tool import ToolSpec
from plait_research.planners.partial_rollout import PartialRollout
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

from .._tools.measure import Row

QUESTIONS, DECISIONS, HARD = 600, 8, 1
P_HARD, P_EASY = 0.15, 0.99
RHOS = (0.0, 0.3, 0.6, 0.9)
RIGHT = "answer: 42"
TURN, REPORT = 100, 60
"""Tokens."""
LOOK = ToolSpec(name="look", parameters={"type": "object", "properties": {"choice": {"type": "integer"}}})


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    right: bool
    """The answer that was chosen."""
    any: bool
    """The answer of some line."""
    tokens: int
    calls: int


class Model:
    """The scripted model, for one question."""

    def __init__(self, question: int, rho: float) -> None:
        self._rho = rho
        self._hard = set(Random(f"hard {question}").sample(range(DECISIONS), HARD))
        self.calls = 0
        self.answers: list[str] = []

    def __call__(self, job: Job, rng: Random) -> Result:
        if isinstance(job.op, ToolCall):
            self.calls += 1
            return Result(value="ok")
        assert isinstance(job.op, ModelCall)
        prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        if "Weigh them" in prompt:
            said = dict.fromkeys(line for line in prompt.splitlines() if line.startswith("answer: "))
            best = max(said, key=lambda each: (each == RIGHT) + rng.gauss(0, 0.5))
            return Result(value=best, usage=Usage(completion=REPORT))
        taken = [call.function.arguments for each in job.op.messages for call in each.tool_calls]
        if len(taken) < DECISIONS:
            return self._decide(len(taken), rng)
        right = all('"choice": 0' in each for each in taken)
        answer = RIGHT if right else f"answer: {Random(str(taken)).randrange(100, 10**6)}"
        if "Report on this" in prompt:
            self.answers.append(answer)
        unsure = self._unsure(False, rng)
        return Result(value=answer, usage=Usage(completion=REPORT), signals=_signals(unsure))

    def _decide(self, number: int, rng: Random) -> Result:
        hard = number in self._hard
        choice = 0 if rng.random() < (P_HARD if hard else P_EASY) else rng.randint(1, 5)
        call = f'<tool_call>{{"name": "look", "arguments": {{"choice": {choice}, "at": {number}}}}}</tool_call>'
        return Result(value=call, usage=Usage(completion=TURN), signals=_signals(self._unsure(hard, rng)))

    def _unsure(self, hard: bool, rng: Random) -> float:
        share = HARD / DECISIONS
        standard = (hard - share) / math.sqrt(share * (1 - share))
        return self._rho * standard + math.sqrt(1 - self._rho**2) * rng.gauss(0, 1)


def _signals(unsure: float) -> Signals:
    return Signals(k=16, confidence=1.0, tail=1.0, bottom=1.0, lowest=1.0, entropy=1.0 + 0.1 * unsure)


def ran(planner: PartialRollout, question: int, rho: float) -> Outcome:
    """Run one question."""
    model = Model(question, rho)
    report = simulate(
        Request(text=f"Question {question}?", seed=question),
        planner=planner,
        hosts=[Host("host", decode_rate=100.0)],
        outcome=model,
        tools=[LOOK],
        seed=question,
    )
    assert report.result is not None, report.failure
    return Outcome(report.result.text == RIGHT, RIGHT in model.answers, report.usage.completion, model.calls)


def measured(planner: PartialRollout, rho: float, questions: int) -> tuple[float, float, float]:
    """Return tokens, the share of right answers, and that of questions which some line answered."""
    found = [ran(planner, question, rho) for question in range(questions)]
    return (
        statistics.fmean(each.tokens for each in found),
        statistics.fmean(each.right for each in found),
        statistics.fmean(each.any for each in found),
    )


def at(tokens: float, curve: Sequence[tuple[float, float, float]], what: int) -> float:
    """Return a share at a number of tokens, on the line between the neighbours that were run."""
    curve = sorted(curve)
    pairs = list(zip(curve, curve[1:], strict=False))
    low, high = next((pair for pair in pairs if tokens <= pair[1][0]), pairs[-1])
    return low[what] + (high[what] - low[what]) * (tokens - low[0]) / (high[0] - low[0])


async def run(questions: int = QUESTIONS) -> list[Row]:
    """Return a row for each correlation and baseline."""
    curves = {
        "random turns": [measured(PartialRollout(criterion="random", n=n), 0.0, questions) for n in (3, 4)],
        "uniform turns": [measured(PartialRollout(criterion="uniform", n=n), 0.0, questions) for n in (3, 4)],
        "whole lines": [
            measured(PartialRollout(criterion="random", positions=0, fresh=n), 0.0, questions) for n in (3, 5)
        ],
    }
    rows: list[Row] = []
    for rho in RHOS:
        tokens, right, some = measured(PartialRollout(), rho, questions)
        for name, curve in curves.items():
            theirs, any_ = at(tokens, curve, 1), at(tokens, curve, 2)
            error = 1.96 * math.sqrt((some * (1 - some) + any_ * (1 - any_)) / questions)
            rows.append(
                Row(
                    f"rho = {rho}: some line right (chosen answer right), against {name}",
                    f"{some:.3f} ({right:.3f}), {tokens:.0f} tokens",
                    f"{any_:.3f} ({theirs:.3f})",
                    f"{some - any_:+.3f} ± {error:.3f}",
                    "no gain" if rho == 0 and name != "whole lines" else "",
                )
            )
    return rows
