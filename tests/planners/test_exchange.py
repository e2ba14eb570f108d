"""Planner `exchange`: what samples are shown of one another, and when that helps a vote and when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from experiments._tools.worker import InProcess, text_of
from plait import AsyncOrchestrator
from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait_research.planners.teams import Exchange

ROUNDS = 3


class World(InProcess):
    """Samples that write an idea in the first round and their answer in the last. One that is shown a right idea takes
    it with probability `sees`, one that is shown wrong ones takes the commonest with probability `follows`."""

    name = "world"

    def __init__(self, seed: int, knows: float, sees: float, follows: float) -> None:
        self.seed, self.knows, self.sees, self.follows = seed, knows, sees, follows
        self.asked: list[str] = []

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        shown, own = text_of(think).removesuffix(think.begin), think.begin
        self.asked.append(text_of(think))
        yield Result(value=self._said(job.step, shown, own), usage=Usage(completion=3), finish=self._finish(own))

    def _said(self, step: str, shown: str, own: str) -> str:
        random = Random(f"{self.seed} {step.partition(':')[2]}")  # a run's id differs each time
        if not own:
            return f"idea {7 if random.random() < self.knows else random.choice((1, 2, 3, 4))}. "
        mine = own.split()[1].rstrip(".")
        ideas = [line.split()[1].rstrip(".") for line in shown.splitlines() if line.startswith("idea ")]
        if "7" in ideas and random.random() < self.sees:
            mine = "7"
        elif ideas and random.random() < self.follows:
            mine = max(sorted(set(ideas)), key=ideas.count)
        return f"answer: {mine}"

    def _finish(self, own: str) -> str:
        return "stop" if own else "length"  # type: ignore[return-value]


async def asked(world: World, n: int = 5, rounds: int = ROUNDS) -> str:
    planner = Exchange(n=n, rounds=rounds, answer=CallConfig(max_tokens=3), step=CallConfig(max_tokens=3))
    async with AsyncOrchestrator(workers=[world], journal=None) as orchestrator:
        answer = await orchestrator.run("Why?", planner=planner, seed=world.seed)
    assert answer.status == "done", answer.failure
    return str(answer.answer)


async def test_each_goes_on_with_its_own_text_and_sees_the_others_but_not_its_own() -> None:
    world = World(1, 1.0, 0.0, 0.0)
    assert await asked(world, n=3, rounds=5) == "7"
    first, second = world.asked[:3], world.asked[3:]
    assert all("idea" not in text for text in first) and len(second) == 3, "who has ended is not asked again"
    for place, text in enumerate(second, 1):
        assert text.endswith("idea 7. ") and text.count("idea 7.") == 3 and f"--- {place}\n" not in text


async def test_one_sample_is_asked_as_it_would_be_alone() -> None:
    world = World(1, 1.0, 0.0, 0.0)
    assert await asked(world, n=1) == "7" and all("Others" not in text for text in world.asked)


@pytest.mark.parametrize(("sees", "follows", "helps"), [(0.7, 0.0, True), (0.0, 0.9, False)])
async def test_seeing_others_helps_where_what_is_right_is_recognised_and_not_where_one_follows(
    sees: float, follows: float, helps: bool
) -> None:
    """Against a vote of as many independent samples, whose share that is right is known in closed form."""
    knows, n, runs = 0.3, 5, 30
    right = sum([await asked(World(seed, knows, sees, follows)) == "7" for seed in range(runs)]) / runs
    alone = sum([await asked(World(seed, knows, 0.0, 0.0)) == "7" for seed in range(runs)]) / runs
    at_least_one = 1 - (1 - knows) ** n
    assert alone == pytest.approx(_vote(knows, n), abs=0.25)
    if helps:
        assert alone + 0.1 < right <= at_least_one + 0.1
    else:
        assert right <= alone + 0.1, "following is no gain"


def _vote(knows: float, n: int) -> float:
    """Return how likely `7` has more votes than any of four other answers, or as many and the first: half of ties."""
    random, right = Random(0), 0.0
    for _ in range(4000):
        votes = [7 if random.random() < knows else random.choice((1, 2, 3, 4)) for _ in range(n)]
        most = max(map(votes.count, votes))
        tied = {vote for vote in votes if votes.count(vote) == most}
        right += (7 in tied) / len(tied)
    return right / 4000


async def test_samples_that_all_fail_fail_the_run_in_words() -> None:
    class Broken(World):
        async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
            yield Failure(kind="engine-error", message="no engine")

    async with AsyncOrchestrator(workers=[Broken(1, 1.0, 0.0, 0.0)], journal=None) as orchestrator:
        answer = await orchestrator.run("Why?", planner=Exchange(n=2, rounds=1))
    assert answer.status == "failed" and answer.failure is not None and "no engine" in answer.failure.message
