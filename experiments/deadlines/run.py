"""How many runs end in time, on engines of unequal speed, at 50, 80 and 95 % load? Simulated.

How many runs end in time: agents of many steps on engines of unequal speed, at 50, 80 and 95 % load, simulated.

The workload is that of HexGen-Flow (Text-to-SQL, arXiv 2505.05286): tables are linked, one to five drafts are written
at the same time, each is corrected up to ten times in a row (few often, many seldom), three checks are made, one answer
is picked. Lengths are log-normal, and a hard question has long answers throughout. Runs come as a Poisson process to
four engines of 16 slots at 1, 1, 1/2 and 1/4 of a speed. A run's deadline is a multiple of what its longest way takes
alone on the quickest engine, with lengths as they are in the mean; then the run ends (`Budget(seconds=…)`).

`oracle` is the policy `deadline` that is told the exact lengths beforehand: what it does better is what a better
estimate could gain. Settings of the policy were chosen with seed 1; medians of the seeds here, the same for all.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from dataclasses import dataclass
from random import Random
from statistics import median

from plait.core import Plan, Plugin, Request, Sampling, Step, Text, Think
from plait.core.budget import Budget
from plait.core.events import Job
from plait.core.interfaces import Policy
from plait.core.plan import template
from plait.core.result import Result, Usage
from plait.core.view import StepView, View
from plait.policies.schedule.deadline import Deadline
from plait.runtime.plugins.loader import Plugins
from plait.runtime.simulation.latency import Host, saturating
from plait.runtime.simulation.workload import at_rate, simulate_workload

from .._tools.measure import Row
from .._tools.rows import show

SPEEDS, SLOTS, PEAK, HALF = (1.0, 1.0, 0.5, 0.25), 16, 800.0, 13.0
MEANS = {"link": 60, "draft": 130, "fix": 110, "check": 40, "pick": 30}
"""Tokens of an answer, by what a step does."""
MOST, WITHIN, BETWEEN = 512, 0.5, 0.3
"""The limit of every answer; standard deviations of the logarithms of lengths, among answers and among questions."""
RUNS, SEEDS = 300, (21, 22, 23)
LOADS, MULTIPLES = (0.5, 0.8, 0.95), (2.5, 3.0, 4.0)
CONTENDERS = (
    ("fifo", "round-robin"),
    ("fifo", "affinity"),
    ("fifo", "predictive"),
    ("deadline", "least-loaded"),
    ("deadline", "predictive"),
    ("oracle", "predictive"),
)
BASE = ("fifo", "least-loaded")


def _of(name: str) -> int:
    return MEANS[template(name).rstrip("-")]


def length(seed: int, step: str) -> int:
    """Return how long the answer to a step is, under any policy."""
    run, _, name = step.rpartition(":")
    hard = Random(f"{seed}/{run}").gauss(0.0, BETWEEN)
    middle = math.log(_of(name)) - (WITHIN**2 + BETWEEN**2) / 2
    return max(1, min(MOST, round(math.exp(Random(f"{seed}/{step}").gauss(middle, WITHIN) + hard))))


def _think(name: str, *needs: str) -> Step:
    prompt = (Text(text="What is to be done? " * 40),)
    return Step(name=name, op=Think(prompt=prompt, sampling=Sampling(max_tokens=MOST)), needs=needs)


@dataclass(frozen=True)
class Question:
    """One request: its plan, the tokens of all its steps, and those of its longest way, in the mean."""

    plan: Plan
    tokens: int
    way: int


def question(rng: Random) -> Question:
    """Draw a request."""
    steps, ends, longest = [_think("link")], list[str](), 0
    for i in range(rng.choice((1, 3, 3, 5))):
        rounds = 0
        while rounds < 10 and rng.random() < 0.4:
            rounds += 1
        if rng.random() < 0.1:
            rounds = 10
        names = [f"draft{i}", *(f"fix{i}-{j}" for j in range(rounds))]
        steps += [_think(name, before) for before, name in zip(["link", *names], names, strict=False)]
        longest = max(longest, sum(map(_of, names)))
        ends.append(names[-1])
    checks = [f"check{i}" for i in range(3)]
    steps += [*(_think(name, *ends) for name in checks), _think("pick", *checks)]
    way = sum(map(_of, ("link", "check", "pick"))) + longest
    return Question(Plan(steps=tuple(steps), output="pick"), sum(_of(step.name) for step in steps), way)


class Oracle(Deadline):
    """The policy with the exact lengths."""

    seed: int = 0

    def tokens_ahead(self, step: StepView, view: View) -> float:
        """Return the tokens of the longest way from a step's start to the end of its run."""
        after = max((self.tokens_ahead(each, view) for each in step.consumers), default=0.0)
        return after + (length(self.seed, step.id) if step.kind == "think" else 0)


class _Registry(Plugins):
    """Finds the oracle, too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._oracle = Oracle(seed=seed)

    def policy(self, spec: Plugin) -> Policy:
        return self._oracle if spec.name == "oracle" else super().policy(spec)


def play(load: float, multiple: float, seed: int, *policies: str, runs: int = RUNS) -> float:
    """Simulate one seed of the workload; return the share of its runs that were done in time."""
    rng = Random(f"questions {seed}")
    questions = [question(rng) for _ in range(runs)]
    hosts = [
        Host(f"engine-{i}", SLOTS, prefill_rate=20_000 * speed, decode_rate=saturating(speed * PEAK, HALF))
        for i, speed in enumerate(SPEEDS)
    ]
    requests = [
        Request(
            planner=Plugin(name="fixed", options={"graph": each.plan.model_dump(mode="json")}),
            policies=tuple(Plugin(name=name) for name in policies if name != "fifo"),
            share="all",
            budget=Budget(seconds=multiple * each.way * (1 + HALF) / PEAK),
        )
        for each in questions
    ]

    def outcome(job: Job, rng: Random) -> Result:
        return Result(value="", usage=Usage(completion=length(seed, job.step)), finish="stop")

    peak = sum(speed * PEAK * SLOTS / (SLOTS + HALF) for speed in SPEEDS)
    arrivals = at_rate(runs, load * peak * runs / sum(each.tokens for each in questions), seed=seed)
    report = simulate_workload(requests, arrivals, hosts=hosts, outcome=outcome, seed=seed, plugins=_Registry(seed))
    return report.done / runs


def rows_of(load: float, multiple: float, seeds: tuple[int, ...] = SEEDS) -> list[Row]:
    """Return the rows of one load and one deadline."""
    base = [play(load, multiple, seed, *BASE) for seed in seeds]
    rows: list[Row] = []
    for policies in CONTENDERS:
        ours = [play(load, multiple, seed, *policies) for seed in seeds]
        gains = [a / b for a, b in zip(ours, base, strict=True)]
        what = f"{load:.0%} load, {multiple:g} times the time alone, {' + '.join(policies)}"
        ratio = f"{median(gains):.2f} ({min(gains):.2f}–{max(gains):.2f})"
        goal = "≥ 1.3" if policies[0] == "deadline" and load == LOADS[-1] else ""
        rows.append(Row(what, f"{median(ours):.1%} in time", f"{' + '.join(BASE)} {median(base):.1%}", ratio, goal))
    return rows


async def run() -> list[Row]:
    """Simulate and return the table's rows: all loads with the deadline in the middle, all deadlines at the highest."""
    cases = [(load, MULTIPLES[1]) for load in LOADS] + [(LOADS[-1], each) for each in MULTIPLES if each != MULTIPLES[1]]
    return [row for load, multiple in cases for row in rows_of(load, multiple)]


def main() -> None:
    """Print the whole table, or that of one load and one deadline: `--load 0.95 --multiple 3`."""
    parser = argparse.ArgumentParser(prog="python -m experiments deadlines", description=__doc__)
    parser.add_argument("--load", type=float)
    parser.add_argument("--multiple", type=float, default=MULTIPLES[1])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    options = parser.parse_args()
    if options.load is None:
        show("deadlines", asyncio.run(run()))
    else:
        show("deadlines", rows_of(options.load, options.multiple, tuple(options.seeds)))
