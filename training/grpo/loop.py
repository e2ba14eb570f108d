"""Reinforcement learning as a loop: make rollouts, train a step on them, load the new weights into the workers, repeat.

It survives a kill at any moment, and no rollout is lost or trained on twice. Three things are on disk: the rollouts
(`Store`), the trainer's checkpoint, and a line a step with the rollouts that it takes, written *before* the step. After
a kill, steps with a line but without a checkpoint are repeated with the same rollouts. Stored rollouts that no line
names are used as new ones; missing rollouts are made.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.core.errors import ConfigError
from plait.runtime.client.client import AsyncOrchestrator
from plait_research.rollouts.advantages import Credit, weighed
from plait_research.rollouts.producer import Feed, Producer, Todo
from plait_research.rollouts.record import Record
from plait_research.rollouts.sampler import Sampler
from plait_research.rollouts.store import Store, read_rollouts


class Trainer(Protocol):
    """The trainer, which keeps its own checkpoint."""

    version: int
    """Number of steps in its checkpoint."""
    weights: Path
    """Folder of the model after these steps."""

    def step(self, rollouts: Sequence[Sequence[Record]]) -> Path:
        """Train on complete rollouts with advantages, write the checkpoint and return the folder of the new weights.
        The loop calls it in a thread."""
        ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """The data of one training step."""

    step: int
    """Number of steps so far, including this one."""
    rollouts: int
    sequences: int
    tokens: int
    """Generated tokens in these rollouts."""
    reward: float
    """Mean reward of the rollouts."""
    again: bool
    """Whether an earlier process had begun this step."""


Questions = Callable[[int], Sequence[DatasetQuestion]]
"""Returns the questions of a step by its number from 0; the result must always be the same."""


class LearningLoop:
    """The loop over an orchestrator whose workers are `samplers`, watched by the producer's log.

    Args: store: store of the rollouts; `OUT.steps` is beside it. questions: questions of each step. Each question is a
        group. branches: number of rollouts of a question. staleness: number of steps that rollouts may be ahead of the
        training (`Feed`). credit: whose advantage threads have that are judged by themselves (`weighed`).
    """

    def __init__(
        self,
        trainer: Trainer,
        producer: Producer,
        store: Store,
        questions: Questions,
        *,
        branches: int = 8,
        staleness: float = 0.0,
        credit: Credit = "rollout",
        concurrency: int = 64,
    ) -> None:
        self._trainer, self._producer, self._store, self._questions = trainer, producer, store, questions
        self._branches, self._concurrency = branches, concurrency
        self._credit: Credit = credit
        self.feed = Feed(len(questions(0)) * branches, staleness, group=branches, credit=credit)
        self._lines = _StepLines(store.path.with_name(f"{store.path.name}.steps"))

    async def run(
        self,
        orchestrator: AsyncOrchestrator,
        samplers: Sequence[Sampler],
        steps: int,
        stopper: Stopper,
        on_step: Callable[[StepReport], None] = lambda report: None,
    ) -> None:
        """Train until the trainer has done this number of steps. Raises `ConfigError` for a trainer with steps whose
        rollouts are not recorded."""
        trainer, lines = self._trainer, self._lines.read()
        if trainer.version > len(lines):
            raise ConfigError(
                f"the trainer has {trainer.version} steps and {self._lines.path} tells of {len(lines)}: give it the "
                "checkpoint that belongs to these rollouts, or begin in a new folder"
            )
        taken = {rollout for line in lines for rollout in line}
        for line in lines[trainer.version : steps]:
            on_step(await self._step(self._stored(line), again=True))
        if trainer.version >= steps or stopper.requested:
            return
        self.feed.version = trainer.version
        if trainer.version:
            for sampler in samplers:
                await sampler.update(trainer.weights, trainer.version)
        waiting = self._stored(sorted(self._store.done - taken))
        making = asyncio.create_task(self._make(orchestrator, waiting, stopper))
        try:
            while trainer.version < steps and not stopper.requested:
                batch = await _or(self.feed.take(), making)
                if batch is None:  # the user has cancelled, and running rollouts are not awaited
                    return
                self._lines.add([rollout[0].rollout for rollout in batch])
                on_step(await self._step(batch))
                for sampler in samplers:
                    await sampler.update(trainer.weights, trainer.version)
                self.feed.trained()
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    async def _step(self, batch: Sequence[Sequence[Record]], again: bool = False) -> StepReport:
        records = [record for rollout in batch for record in rollout]
        await asyncio.to_thread(self._trainer.step, batch)
        return StepReport(
            step=self._trainer.version,
            rollouts=len(batch),
            sequences=len(records),
            tokens=sum(record.generated for record in records),
            reward=sum(rollout[0].reward or 0.0 for rollout in batch) / max(1, len(batch)),
            again=again,
        )

    async def _make(
        self, orchestrator: AsyncOrchestrator, waiting: Sequence[Sequence[Record]], stopper: Stopper
    ) -> None:
        """Pass on the rollouts of an earlier process, then make missing rollouts until cancelled."""

        def sink(rollout: Sequence[Record]) -> None:
            self._store.add(rollout)
            self.feed.put(rollout)

        for rollout in waiting:
            await self.feed.credit()
            self.feed.put(rollout)
        await self._producer.make(
            orchestrator, self._missing(), sink, stopper, concurrency=self._concurrency, credit=self.feed.credit
        )

    def _missing(self) -> Iterator[Todo]:
        for step in itertools.count():
            for number, question in enumerate(self._questions(step)):
                for branch in range(self._branches):
                    item = Todo(f"{step}-{number}", branch, question)
                    if item.rollout not in self._store.done:
                        yield item

    def _stored(self, wanted: Sequence[str]) -> list[list[Record]]:
        """Return rollouts of the store, with their advantages, in the order of their names. Raises `ConfigError`."""
        left = set(wanted)
        kept = {made[0].rollout: made for made in read_rollouts(self._store.path) if made[0].rollout in left}
        if missing := [name for name in wanted if name not in kept]:
            raise ConfigError(f"{self._store.path} lacks the rollout {missing[0]}, which a step was trained on")
        return weighed([kept[name] for name in wanted], self._credit)


class _StepLines:
    """A file of the rollouts of each step, one line of JSON a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[list[str]]:
        """Return the lines, and cut off a torn last line."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole, _, torn = content.rpartition(b"\n")
        if torn:
            os.truncate(self.path, len(content) - len(torn))
        return [json.loads(line) for line in whole.splitlines()]

    def add(self, rollouts: Sequence[str]) -> None:
        """Write a line and flush it to the disk."""
        with self.path.open("ab") as file:
            file.write(json.dumps(rollouts).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


async def _or(
    wanted: Coroutine[None, None, list[list[Record]]], beside: asyncio.Task[None]
) -> list[list[Record]] | None:
    """Return the first task's result, or `None` if the other ends first. Raises the other task's error."""
    task = asyncio.create_task(wanted)
    try:
        await asyncio.wait({task, beside}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        beside.result()
        return None
    finally:
        task.cancel()
