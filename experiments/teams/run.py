"""Are teams better than plain votes at as many tokens? With scripted agents.

Teams against what they cost: debate and layers against plain votes at as many tokens, with scripted agents.

An agent is right at first with probability p. When it has read the others, it takes the majority of all answers with
probability 0.9 and else keeps its own (conformity, as agents of one model show). Then three agents decide as the
majority of three first answers would, p³ + 3p²(1 − p), and rounds win nothing. The vote over six has as many calls;
its ties go to the first answer, so it is right as often as a vote over five. In layers (three, of three answers) each
answer and the last call read those of the layer before in the same way; the vote has as many answers as layers
had calls on average, and one more if that is even.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall, Text
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.planners.votes.sample import Sample
from plait_research.planners.teams import Debate, Layers
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import simulate

from .._tools.measure import Row

RUNS, CONFORMITY = 400, 0.9
ANSWER = 100
"""Tokens of one answer."""


def agents(p: float, rng: Random) -> Callable[[Job, Random], Result | Failure]:
    """Return the replies of the scripted agents of one run."""

    def outcome(job: Job, _: Random) -> Result:
        assert isinstance(job.op, ModelCall)
        prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        value = "42" if rng.random() < p else "41"
        read = next((each.text for each in job.op.messages if "Synthesize" in each.text), "")
        if read and rng.random() < CONFORMITY:
            value = max(("42", "41"), key=lambda word: read.count(f"answer: {word}"))
        if "advice" in prompt:
            own = "42" if "42" in job.op.messages[-1].text else "41"
            votes = [own, *(word for word in ("42", "41") for _ in range(prompt.count(f"answer: {word}")))]
            value = max(("42", "41"), key=votes.count) if rng.random() < CONFORMITY else own
        return Result(value=f"answer: {value}", usage=Usage(completion=ANSWER))

    return outcome


def right(planner: Planner, p: float) -> tuple[float, float]:
    """Return the share of right answers, and the mean of the tokens."""
    hits, tokens = 0, 0
    for seed in range(RUNS):
        report = simulate(
            Request(text="?", seed=seed), planner=planner, hosts=[Host("host")], outcome=agents(p, Random(seed))
        )
        hits += report.result is not None and "42" in report.result.text
        tokens += report.usage.completion
    return hits / RUNS, tokens / RUNS


async def run() -> list[Row]:
    """Return a row for each p: debate against six samples, with what theory says of both."""
    rows: list[Row] = []
    for p in (0.4, 0.55, 0.7, 0.85):
        three = p**3 + 3 * p**2 * (1 - p)
        five = p**3 * (10 - 15 * p + 6 * p**2)
        ours, spent = right(Debate(), p)
        voted, baseline = right(Sample(n=6, early=False, answer=CallConfig(temperature=0.8)), p)
        error = 2 * (three * (1 - three) / RUNS) ** 0.5
        rows.append(
            Row(
                f"right answers, agents right with p = {p}",
                f"debate {ours:.3f} ({spent:.0f} tokens; theory {three:.3f} ± {error:.3f})",
                f"vote of 6 {voted:.3f} ({baseline:.0f} tokens; theory {five:.3f})",
                f"{ours - voted:+.3f}",
            )
        )
    return [*rows, *layers()]


def layers() -> list[Row]:
    """Return a row for each p: layers against a vote with as many tokens."""
    rows: list[Row] = []
    for p in (0.4, 0.55, 0.7, 0.85):
        ours, spent = right(Layers(rounds=3, n=3), p)
        n = round(spent / ANSWER)
        n += n % 2 == 0
        voted, baseline = right(Sample(n=n, early=False, answer=CallConfig(temperature=0.8)), p)
        error = 1.96 * ((ours * (1 - ours) + voted * (1 - voted)) / RUNS) ** 0.5
        rows.append(
            Row(
                f"right answers, layers, answers right with p = {p}",
                f"layers {ours:.3f} ({spent:.0f} tokens)",
                f"vote of {n} {voted:.3f} ({baseline:.0f} tokens)",
                f"{ours - voted:+.3f} ± {error:.3f}",
            )
        )
    return rows
