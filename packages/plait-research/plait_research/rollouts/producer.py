"""Make rollouts: run every prompt in several branches under any planner, and turn each ended run into records."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.apps.common.dataset import DatasetQuestion
from plait.apps.common.interrupt import Stopper
from plait.apps.common.progress import for_each
from plait.core.errors import PlannerError, UsageError
from plait.core.interfaces import Worker
from plait.core.request import Request
from plait.core.tools.tool import Tool
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.runlog import RunLog

from ..workers.token_client import TokenClient
from .advantages import Credit, weighed
from .record import Record, records
from .rewards import OwnReward, Reward
from .sampler import Sampler
from .store import SkipCounts

# Pass rollouts from producers to a trainer, while both run.
#
# Nothing is dropped because a queue is full: a rollout starts only with a credit, and there are as many credits as
# rollouts may be ahead of the trainer. `staleness` s is that of asynchronous RL (AsyncFlow, arXiv 2507.01663; verl):
# with `batch` rollouts per step, at most `(1 + s) * batch` are running, waiting, or in training. With s = 0 the
# producers wait while the trainer trains, so a step takes the sum of both times; from s = 1 on it takes the longer of
# the two.
#
# Credits alone cannot guarantee freshness (a rollout may take long), so age is checked again when a batch is taken.


class Feed:
    """A queue between producers and one trainer, in one event loop.

    Args: batch: rollouts of a training step. staleness: number of steps that producers may be ahead; 0 is synchronous.
        max_staleness: most updates between the oldest token of a rollout and the step that trains on it; the next
        larger integer of `staleness` if left out. group: rollouts of a prompt. They are given out together, for an
        advantage is one among them. credit: whose advantage threads have that are judged by themselves; see `weighed`.
    """

    def __init__(
        self,
        batch: int,
        staleness: float = 0.0,
        max_staleness: int | None = None,
        *,
        group: int = 1,
        credit: Credit = "rollout",
    ) -> None:
        if batch < 1 or not 0 <= staleness < math.inf:
            raise UsageError("a feed has a batch of 1 or more, and a staleness of 0 or more")
        if group < 1 or batch % group:
            raise UsageError(f"a batch of {batch} is not made of groups of {group}: give a multiple of the group")
        self.batch, self.group = batch, group
        self.max_staleness = math.ceil(staleness) if max_staleness is None else max_staleness
        self.version = 0
        """Version of the trained weights; counts steps."""
        self.counts = SkipCounts()
        self._by: Credit = credit
        self._credits = round((1 + staleness) * batch)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._forming: dict[str, list[list[Record]]] = {}
        """Incomplete groups, by name."""
        self._ready: deque[list[list[Record]]] = deque()
        """Complete groups."""
        self._filled = asyncio.Event()
        self._held = 0
        """Credits of the rollouts in training, and of the rollouts left out of their groups."""

    async def credit(self) -> None:
        """Wait until a rollout may start. Each credit is used up by one `put` or given back by `forfeit`."""
        while not self._credits:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # The waiter got its credit just before it was cancelled: the next waiter gets it.
                if turn.done() and not turn.cancelled():
                    self._wake(1)
                raise
        self._credits -= 1

    def put(self, rollout: Sequence[Record]) -> None:
        """Add a complete rollout to the queue."""
        self._join(rollout[0].group, list(rollout))

    def forfeit(self, group: str = "") -> None:
        """Return the credit of a failed rollout; `group`: its group, if groups are used."""
        if self.group == 1:
            self._give(1)
        else:
            self._join(group, [])

    def _join(self, name: str, rollout: list[Record]) -> None:
        group = self._forming.setdefault(name, [])
        group.append(rollout)
        if len(group) == self.group:
            self._ready.append(self._forming.pop(name))
            self._filled.set()

    async def take(self) -> list[list[Record]]:
        """Return the rollouts of the next step, as soon as there are enough that are fresh and judged: whole groups,
        with their advantages, less what had to be left out of them. Credits of a group that is left out as a whole are
        given back at once, so that another is made in its place."""
        out: list[list[Record]] = []
        for _ in range(self.batch // self.group):
            # A rollout alone in its group has no other to be compared with.
            while len(kept := await self._next()) < min(2, self.group):
                self._give(self.group)
            out += kept
        self._held += self.batch
        return weighed(out, self._by) if self.group > 1 else out

    async def _next(self) -> list[list[Record]]:
        """Return the rollouts of the next group that may be trained on."""
        while not self._ready:
            self._filled.clear()
            await self._filled.wait()
        group = sorted(filter(None, self._ready.popleft()), key=lambda rollout: rollout[0].branch)
        return [rollout for rollout in group if self._wanted(rollout)]

    def _wanted(self, rollout: list[Record]) -> bool:
        oldest = min((version for record in rollout for version in record.versions), default=self.version)
        if self.version - oldest > self.max_staleness:
            self.counts.stale += 1
        elif not all(record.judged for record in rollout):
            self.counts.unjudged += 1
        else:
            self.counts.read += 1
            return True
        return False

    def trained(self) -> int:
        """Record that the last batch was trained on and the producers have the new weights; return their version."""
        self.version += 1
        held, self._held = self._held, 0
        self._give(held)
        return self.version

    def _give(self, count: int) -> None:
        self._credits += count
        self._wake(count)

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            turn = self._waiting.popleft()
            # A waiter that was cancelled needs no credit.
            if not turn.done():
                turn.set_result(None)
                count -= 1


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


async def roll_out(
    worker: TokenClient, group: str, branch: int, request: Mapping[str, Any], tools: Sequence[Tool[..., Any]] = (),
    options: Mapping[str, Any] = {},
) -> tuple[Answer, list[Record]]:  # fmt: skip
    """Run one request on the servers of another library's trainer, and return the answer and the rollout's sequences.
    The last sequence made the last model call, so it holds the answer. Cancelled with its task. `options`: further
    fields of a configuration, such as `tools` and `mcp`.

    Raises the last error of the servers if there was one, and `PlannerError` if the run made no model call.
    """
    log = RunLog(keep="attempts")
    config = Config.load(**{"journal": "off", **options})
    orchestrator = AsyncOrchestrator(workers=[worker], tools=tools, config=config)
    orchestrator.watch(log.take)
    async with orchestrator:
        answer = await orchestrator.run(**request)
    if worker.error is not None:  # the trainer decides whether to repeat the rollout
        raise worker.error
    run = log.pop(answer.run)
    if run is None or not run.calls:
        reason = answer.failure.message if answer.failure else "the plan has none"
        raise PlannerError(f"the rollout {group}/{branch} made no model call: {reason}")
    last = run.calls[-1].step.partition(":")[2]
    made = records(run, group, branch)
    return answer, sorted(made, key=lambda record: any(segment.step == last for segment in record.segments))


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
