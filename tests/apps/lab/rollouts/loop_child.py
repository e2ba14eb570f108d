"""A learning loop on the worker `Letters` and a trainer that only counts; kills itself where its caller says.

python loop_child.py FOLDER STEPS [line|trained|made] [NUMBER]
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.core.request import Request
from plait.runtime.client.client import AsyncOrchestrator
from plait.tasks.plain import Plain
from plait_research.rollouts.producer import Producer, sampled
from plait_research.rollouts.record import Record
from plait_research.rollouts.rewards import reward_of
from plait_research.rollouts.store import Store
from tests.apps.lab.rollouts.letters import Letters
from training.grpo.loop import LearningLoop, StepReport

PROMPTS, BRANCHES = 2, 3


class Counting:
    """Keeps what it was trained on, step by step, as its weights."""

    def __init__(self, folder: Path, die: tuple[str, int]) -> None:
        self.weights, self._die = folder / "weights.json", die
        self.steps: list[dict[str, list[float | None]]] = []
        if self.weights.exists():
            self.steps = json.loads(self.weights.read_text())
        self.version = len(self.steps)

    def step(self, rollouts: Sequence[Sequence[Record]]) -> Path:
        """Add the rollouts and their advantages."""
        self.dies("line", self.version)
        self.steps.append({rollout[0].rollout: [record.advantage for record in rollout] for rollout in rollouts})
        temporary = self.weights.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.steps))
        temporary.replace(self.weights)
        self.version += 1
        self.dies("trained", self.version)
        return self.weights

    def dies(self, where: str, number: int) -> None:
        """Be killed here, if its caller says so."""
        if self._die == (where, number):
            os.kill(os.getpid(), signal.SIGKILL)


async def main(
    folder: Path,
    steps: int,
    die: tuple[str, int],
    staleness: float = 0.0,
    stopper: Stopper | None = None,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> Letters:
    """Run the loop."""
    stopper = stopper or Stopper(asyncio.get_running_loop())
    worker, trainer = Letters(), Counting(folder, die)
    workers, samplers = sampled([worker])
    request = Request.of({"planner": "sample:n=2,answer.temperature=1"})
    producer = Producer(request, reward_of("verified"), 7)
    orchestrator = AsyncOrchestrator(workers=workers, journal="off")
    orchestrator.watch(producer.log.take)
    with Store(folder / "out.jsonl", {"test": True}) as store:
        add = store.add

        def counted(records: Sequence[Record]) -> None:
            add(records)
            trainer.dies("made", len(store.done))

        store.add = counted  # type: ignore[method-assign]
        loop = LearningLoop(
            trainer, producer, store,
            lambda step: [DatasetQuestion(Plain(text=f"Question {step}.{n}?"), "4") for n in range(PROMPTS)],
            branches=BRANCHES, staleness=staleness, concurrency=4,
        )  # fmt: skip
        async with orchestrator:
            await loop.run(orchestrator, samplers, steps, stopper, on_step)
    return worker


if __name__ == "__main__":
    place, number = (*sys.argv[3:5], "", "-1")[:2]
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), (place, int(number))))
