"""Make rollouts: run every prompt in several branches under any planner, and turn each ended run into records."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.apps.common.output import for_each
from plait.core.interfaces import Worker
from plait.core.request import Request
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.runlog import RunLog

from .record import Record
from .rewards import OwnReward, Reward
from .sampler import Sampler
from .sequences import records


@dataclass(frozen=True, slots=True)
class Todo:
    """A rollout to make."""

    group: str
    branch: int
    question: DatasetQuestion

    @property
    def rollout(self) -> str:
        """Id of the rollout."""
        return f"{self.group}/{self.branch}"


@dataclass(slots=True)
class ProductionCounts:
    """Counts of the rollouts made so far."""

    rollouts: int = 0
    records: int = 0
    tokens: int = 0
    """Generated tokens in the records."""
    reward: float = 0.0
    """Sum of all rewards."""
    unjudged: int = 0

    def add(self, rollout: Sequence[Record]) -> None:
        """Count a rollout."""
        self.rollouts += 1
        self.records += len(rollout)
        self.tokens += sum(record.generated for record in rollout)
        if rollout[0].judged:
            self.reward += rollout[0].reward or 0.0
        else:
            self.unjudged += 1


Sink = Callable[[Sequence[Record]], None]
"""Receives a complete rollout."""


def todo(questions: Sequence[DatasetQuestion], branches: int) -> Iterator[Todo]:
    """Yield all rollouts, those of a prompt one after another."""
    for number, question in enumerate(questions):
        for branch in range(branches):
            yield Todo(str(number), branch, question)


def sampled(workers: Sequence[Worker]) -> tuple[list[Worker], list[Sampler]]:
    """Return the workers, with model workers wrapped as samplers that report draws, and the samplers alone."""
    samplers: dict[int, Sampler] = {id(worker): Sampler(worker) for worker in workers if "think" in worker.serves}
    return [samplers.get(id(worker), worker) for worker in workers], list(samplers.values())


class Producer:
    """Makes rollouts on an orchestrator whose workers are `sampled` ones. It has to `watch` with `log.take`.

    Args: request: template of each question's request. reward: judges an answer. seed: seed of all sampling; each
    branch derives its own seed from it. own: judges a single sequence of a rollout (`Record.own`).
    """

    def __init__(self, request: Request, reward: Reward, seed: int = 0, own: OwnReward | None = None) -> None:
        self.request, self._reward, self._seed, self._own = request, reward, seed, own
        self.log = RunLog(keep="attempts")
        self.made = ProductionCounts()

    async def make(
        self,
        orchestrator: AsyncOrchestrator,
        wanted: Sequence[Todo] | Iterator[Todo],
        sink: Sink,
        stopper: Stopper,
        *,
        concurrency: int = 64,
        credit: Callable[[], Awaitable[None]] | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Make rollouts and pass each complete rollout to the sink. Await `credit` before each start."""

        async def one(item: Todo) -> None:
            if credit is not None:
                await stopper.until(credit())
            rollout = await self.one(orchestrator, item, stopper)
            if rollout:
                sink(rollout)
                self.made.add(rollout)
                advance()

        await for_each(wanted, one, concurrency, stopper)

    async def one(self, orchestrator: AsyncOrchestrator, item: Todo, stopper: Stopper) -> list[Record]:
        """Make one rollout; it is empty if the user cancelled it, and has no reward if its run failed."""
        seed = int.from_bytes(hashlib.blake2b(f"{self._seed}/{item.rollout}".encode(), digest_size=4).digest(), "big")
        request = self.request.updated({"text": item.question.text, "seed": seed})
        handle = await orchestrator.submit(request)
        revoke = stopper.then(handle.cancel)
        try:
            answer = await handle
        finally:
            revoke()
        run = self.log.pop(handle.run)
        if answer.status == "cancelled" or run is None:
            return []
        made = records(run, item.group, item.branch, self._reward(item.question, answer))
        if self._own is not None:
            made = [record.model_copy(update={"own": self._own(record)}) for record in made]
        meta = _said(answer)
        if not made:  # Nothing was generated; the rollout is recorded, so that it is not retried forever.
            return [Record(rollout=item.rollout, group=item.group, branch=item.branch, tokens=(), mask=(), meta=meta)]
        return [
            record.model_copy(update={"meta": {**record.meta, **meta}}) if not record.index else record
            for record in made
        ]


def _said(answer: Answer) -> dict[str, Any]:
    """Return the fields about a run in the first record of its rollout."""
    meta: dict[str, Any] = {
        "status": answer.status,
        "critical": answer.critical_path_tokens,
        "total": answer.total_tokens,
        "seconds": round(answer.seconds, 4),
    }
    if answer.failure is not None:
        meta["failure"] = answer.failure.kind
    return meta
