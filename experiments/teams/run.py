"""Are teams better than plain votes at as many tokens? With scripted agents.

Teams against what they cost: debate and layers against plain votes at as many tokens, and a blackboard against one
worker alone, all with scripted agents.

An agent is right at first with probability p. When it has read the others, it takes the majority of all answers with
probability 0.9 and else keeps its own (conformity, as agents of one model show). Then three agents decide as the
majority of three first answers would, p³ + 3p²(1 − p), and rounds win nothing. The vote over six has as many calls;
its ties go to the first answer, so it is right as often as a vote over five. In layers (three, of three answers) each
answer and the last call read those of the layer before in the same way; the vote has as many answers as layers
had calls on average, and one more if that is even.

On the blackboard 12 items are to be done, an item a step. A worker does one that the log does not have. With claims it
writes down which one it takes next, and leaves those that others have taken; without, two may choose the same. Steps
are equally long, or uneven: of a fifth to nine fifths of that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall, Text
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.planners.votes.sample import Sample
from plait_research.planners.teams import Blackboard, Debate, Layers
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
    return [*rows, *layers(), *blackboards()]


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


ITEMS, STEP, BOARDS = 12, 40, 100
"""Items of a question, tokens of one, and questions."""
_ENTRY = re.compile(r"\*\*worker-(\d+) \[\d+\]:\*\*")


def workers(claims: bool, uneven: bool, rng: Random, done: list[int]) -> Callable[[Job, Random], Result]:
    """Return the texts of the workers of one blackboard; `done` takes the items that they do."""

    def outcome(job: Job, rest: Random) -> Result:
        assert isinstance(job.op, ModelCall)
        usage = Usage(completion=rng.randint(STEP // 5, STEP * 9 // 5) if uneven else STEP)
        prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        pieces = _ENTRY.split(prompt)[1:]
        owners: dict[int, str] = {}
        for owner, text in zip(pieces[::2], pieces[1::2], strict=True):
            for item in re.findall(r"I take: item (\d+)", text):
                owners.setdefault(int(item), owner)
        seen = {int(item) for item in re.findall(r"did item (\d+)", prompt)}
        left = [item for item in range(ITEMS) if item not in seen]
        if not left:
            return Result(value=" answer: all", usage=usage)
        me = pieces[-2] if pieces else "1"
        mine = [item for item in left if owners.get(item) == me]
        free = [item for item in left if item not in owners]
        item = mine[0] if mine else rng.choice(free or left)
        done.append(item)
        others = [each for each in free if each != item]
        claim = f"\nI take: item {rng.choice(others)}" if claims and others else ""
        return Result(value=f" did item {item}{claim}", usage=usage)

    return outcome


def board(count: int, claims: bool, lag: int, uneven: bool = False) -> tuple[float, float, float]:
    """Return the seconds, the tokens, and the items done twice, on average."""
    seconds = tokens = twice = 0.0
    for seed in range(BOARDS):
        done: list[int] = []
        planner = Blackboard(n=count, rounds=3 * ITEMS, step=CallConfig(max_tokens=2 * STEP), depth=lag)
        hosts = [Host("host", decode_rate=STEP / 1.0, prefill_rate=1e9)]
        outcome = workers(claims, uneven, Random(seed), done)
        report = simulate(Request(text="Do all items.", seed=seed), planner=planner, hosts=hosts, outcome=outcome)
        assert report.result is not None and set(done) == set(range(ITEMS)), report.failure
        seconds, tokens = seconds + report.makespan, tokens + report.usage.completion
        twice += len(done) - ITEMS
    return seconds / BOARDS, tokens / BOARDS, twice / BOARDS


def blackboards() -> list[Row]:
    """Return a row for each number of workers and kind of steps, with and without claims, against one worker."""
    rows: list[Row] = []
    for steps, uneven, both in (("equal", False, (True, False)), ("uneven", True, (True,))):
        alone, spent, _ = board(1, claims=False, lag=0, uneven=uneven)
        for count in (2, 3, 4):
            for claims, lag in ((claims, lag) for claims in both for lag in (0, 1)):
                seconds, tokens, twice = board(count, claims, lag, uneven)
                said = f"{count} workers, {steps} steps, {'claims' if claims else 'no claims'}, lag {lag}"
                rows.append(
                    Row(
                        f"blackboard, {said}: times as fast",
                        f"{seconds:.1f} s, {tokens:.0f} tokens, {twice:.1f} items twice",
                        f"one worker {alone:.1f} s, {spent:.0f} tokens",
                        f"{alone / seconds:.2f}",
                    )
                )
    return rows
