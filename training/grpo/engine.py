"""The product's loop on an engine: rollouts of the planner `threads`, steps of our trainer, its weights into the
running engine, and so on. After a kill at any moment, the same call resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.core.request import Request
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.engine import Engine
from plait_bench.tasks.countdown import Countdown
from plait_research.rollouts.advantages import Credit
from plait_research.rollouts.producer import Producer, sampled
from plait_research.rollouts.rewards import reward_of
from plait_research.rollouts.store import Store

from . import five
from .loop import LearningLoop, StepReport
from .threads import CHILD_TOKENS, PARENT_TOKENS, thread_reward
from .trainer import Learner

REQUEST = {
    "task": f"countdown:count={five.COUNT}",
    # Every thread runs to its end, so that each is judged, and begins afresh, as the start was trained.
    "planner": f"threads:n={five.WIDTH},rounds={five.ROUNDS},early=false,fork=false,"
    f"answer.temperature=1,part.temperature=1,answer.max_tokens={PARENT_TOKENS},part.max_tokens={CHILD_TOKENS}",
}
REWARD = "accelerated:0.2"


def questions(seed: int, problems: int) -> Callable[[int], Sequence[DatasetQuestion]]:
    """Return the training problems of each step: those of the plain loop."""

    def of(step: int) -> list[DatasetQuestion]:
        rng = random.Random(f"grpo/{seed}/{step}")
        drawn = [five.draw_problem(rng, test=False) for _ in range(problems)]
        texts = [f"{' '.join(map(str, numbers))} -> {target}" for numbers, target in drawn]
        return [DatasetQuestion(Countdown(text=text, count=five.COUNT)) for text in texts]

    return of


async def learn(
    folder: Path,
    start: Path,
    credit: Credit,
    seed: int,
    steps: int,
    problems: int,
    branches: int,
    stopper: Stopper,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> Learner:
    """Make the steps that are missing. Rollouts, steps and the learner's checkpoint are in the folder."""
    learner = Learner(folder, start, seed=seed)
    workers, samplers = sampled(
        [Engine(learner.weights, dtype="float32", slots=128, threads=1, processed_logprobs=True)]
    )
    producer = Producer(Request.of(REQUEST), reward_of(REWARD), seed, thread_reward)
    orchestrator = AsyncOrchestrator(workers=workers, journal="off")
    orchestrator.watch(producer.log.take)
    header = {"request": REQUEST, "reward": REWARD, "seed": seed, "problems": problems, "branches": branches}
    with Store(folder / "rollouts.jsonl", header) as store:
        loop = LearningLoop(
            learner, producer, store, questions(seed, problems), branches=branches, credit=credit, concurrency=64
        )
        async with orchestrator:
            await loop.run(orchestrator, samplers, steps, stopper, on_step)
    return learner
