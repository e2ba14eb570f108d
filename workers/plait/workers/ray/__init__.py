"""Workers inside Ray actors: an engine that lives in a process of its own, on this machine or another.

Jobs go out in batches, and reports come back in batches as the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from plait.core.errors import EngineError, WorkerError, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import CacheUpdate, Tell, Worker
from plait.core.ops import Kind, ModelCall
from plait.core.result import Failure, Result, as_failure

from .._shared.batch_streams import CallbackWorker, TokenBatch
from .._shared.kv_events import Mailbox
from .._shared.resources import default_threads, local_model, usable_cores
from . import cluster
from .actor import (
    SILENCE_LIMIT_S,
    ActorHost,
    ActorJob,
    EngineOutputs,
    TokenBuffer,
    answered,
    first_line,
    hangs,
    load,
    reply,
)
from .quarantine import Quarantine

__all__ = ["Quarantine", "RayWorker", "pool"]

log = logging.getLogger("plait.ray")

T = TypeVar("T")

CHECKPOINT_STEPS = 4
"""Engine steps between two checkpoints of the generated ids, and maximum tokens that a branch of a dead engine loses.
A checkpoint between machines is a message, which costs the engine's thread about half a millisecond; figures are in
`experiments/LOG.md`."""
FOLLOW_SECONDS = 0.002
"""Seconds to wait after a batch of reports for the jobs that follow from it: they then go out with the next call."""
HOUR = 3600.0
PAUSE_SECONDS = 10.0
"""Seconds before an actor that could not be made again is tried once more; then twice as many each time."""
MAX_CALLS = 10_000
"""Calls that an actor takes at the same time; a job is not a call, so this only has to cover cancels."""


class RayWorker(CallbackWorker):
    """Hosts a worker in a Ray actor.

    Options:
        host: the class as `pkg.mod:Class`; `options` are its keyword arguments.
        num_cpus, num_gpus, resources: what the actor reserves. `num_gpus=None`: one GPU on a cluster that has some.
        restarts: how often within an hour an actor that died is made again.
        start_timeout: seconds for the cluster to find room for the actor and for the hosted worker to start.
        silence: seconds without an answer after which an actor is taken for dead and killed. By default 60; for an
            engine twenty times its slowest recent answer, at least 10 and at most 60.
        placement, bundle: the placement group of a whole pool, and the bundle of this actor in it.
        count: number of such actors that must fit at the start.
        like: a worker whose slots and kinds of steps are those of the hosted one; by default one is made for that.
        quarantine: shared by the workers of a pool.
        patience: seconds that a local cluster has to start; by default as long as it takes.

    When the actor dies, its jobs fail with `WorkerLost`. The scheduler tries them again elsewhere, or here when the
    actor is back, from the last checkpoint of their token ids. An engine that has requests and makes no step counts as
    dead too. A prompt that seems to kill engines is not retried (`Quarantine`).
    """

    def __init__(
        self,
        host: str = "plait.workers.engine:Engine",
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "engine-0",
        num_cpus: float = 1,
        num_gpus: float | None = 0,
        resources: Mapping[str, float] | None = None,
        restarts: int = 3,
        start_timeout: float = 180.0,
        silence: float | None = None,
        placement: cluster.Placement | None = None,
        bundle: int = 0,
        count: int = 1,
        like: Worker | None = None,
        quarantine: Quarantine | None = None,
        patience: float | None = None,
    ) -> None:
        self.name = name
        self.identity = ""
        self._quarantine = quarantine or Quarantine()
        self._live: dict[int, ActorJob] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        """Suspects that wait for their turn."""
        # An engine's own pace tells how long a step may take; how long another worker is silent by nature is not known.
        self._follows_pace = silence is None and host.endswith(":Engine")
        self._spec, self._options = host, dict(options or {})
        described = like or load(host, self._options)  # made only to be asked; nothing is loaded before `start`
        self.slots: int = described.slots
        self.serves: tuple[Kind, ...] = described.serves
        self.pid: int | None = None
        """Process id of the actor."""
        self._wanted: dict[str, float] = {"CPU": num_cpus, "GPU": num_gpus or 0, **(resources or {})}
        self._any_gpus, self._count = num_gpus is None, count
        self.models: tuple[str, ...] = tuple(getattr(described, "models", ()))
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self.reports: int | None = getattr(described, "reports", None)
        self.extra_body: tuple[str, ...] | None = getattr(described, "extra_body", None)
        self._restarts, self._start_timeout, self._silence = restarts, start_timeout, silence or SILENCE_LIMIT_S
        self._patience = patience
        self._placement, self._bundle, self._placed = placement, bundle, False
        self._ray: Any = None
        self._actor: Any = None
        self._tokens = TokenBuffer(self._live)
        self._outbox: list[Job] = []
        self._given_up: list[int] = []
        self._calls, self._called = 0, False
        self._replies: deque[asyncio.Future[list[EngineOutputs]]] = deque()
        """Replies to come, the oldest call first. The newest call waits for reports."""
        self._sent = asyncio.Event()
        """Set when a call goes out."""
        self._health: asyncio.Queue[bool | None] = asyncio.Queue()
        self._cache = Mailbox()
        self._follower: asyncio.Task[None] | None = None
        self._head: cluster.Head | None = None
        self._gone: asyncio.Task[str] | None = None
        """Ends when the cluster is lost; its result is the message."""

    @property
    def ready(self) -> bool:
        """Whether the actor is there and its worker has started."""
        return self._actor is not None

    async def start(self) -> None:
        """Join or start Ray, make the actor, start the hosted worker. Raises `WorkerError` (or `EngineError` from
        it)."""
        if self._ray is not None:
            return
        self._health, self._cache = asyncio.Queue(), Mailbox()
        self._ray = await cluster.join(self, self._patience)
        self._head = cluster.Head(self._ray)
        self._gone = asyncio.create_task(self._head.wait_for_loss())
        try:
            await self._make()
        except BaseException:
            await self.close()
            raise
        self._health.put_nowait(True)
        self._follower = asyncio.create_task(self._follow())

    def begin(self, job: Job, tell: Tell) -> None:
        """Send a job to the actor, and pass on its reports."""
        turn = self._quarantine.turn(job)
        live = self._live[job.attempt] = ActorJob(job, tell, partial(self._end, job, turn, tell))
        if turn is None:
            self._submit(live)
            return
        # Its prompt was running each time that an engine died: alone, another death is seen to be its doing.
        waiting = self._waiting[job.attempt] = asyncio.ensure_future(turn.acquire())
        waiting.add_done_callback(lambda _: self._submit(live, waiting.cancelled()))

    def _submit(self, live: ActorJob, is_cancelled: bool = False) -> None:
        if is_cancelled:
            live.push(Result(value="", finish="cancelled"))
        elif (refusal := self._quarantine.refusal(live.job)) is not None:
            live.push(refusal)
        elif self._actor is None:
            live.push(as_failure(WorkerLost(f"{self.name} " + (f"died: {self.lost}" if self.lost else "is down"))))
        elif not live.ended:
            live.is_sent = True
            self._outbox.append(live.job)
            self._call()

    def _end(self, job: Job, turn: asyncio.Lock | None, tell: Tell, end: Result | Failure) -> None:
        # It has run to its end here, so the death was not its doing.
        if isinstance(end, Result) and end.finish != "cancelled":
            self._quarantine.cleared(job)
        del self._live[job.attempt]
        # It had its turn: the next suspect may go.
        if turn is not None and not (waiting := self._waiting.pop(job.attempt)).cancel() and not waiting.cancelled():
            turn.release()
        tell(end)

    async def cancel(self, attempt: int) -> None:
        """Stop an attempt in the actor."""
        live = self._live.get(attempt)
        if live is not None and live.is_sent:
            self._given_up.append(attempt)
            self._call()
        # It was never sent: there is nothing to stop in the actor.
        elif (waiting := self._waiting.get(attempt)) is not None:
            waiting.cancel()

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True` when the actor is ready, `False` when it died and is restarted; end when it is lost."""
        while (healthy := await self._health.get()) is not None:
            yield healthy

    async def cache_news(self) -> AsyncIterator[CacheUpdate]:
        """Yield the hosted worker's reports on its prefix cache, if it has any."""
        async for news in self._cache:
            yield news

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Have the hosted worker count a prompt."""
        return await self._unless_gone(reply(self._actor.count_tokens, op)) if self._actor is not None else None

    async def close(self) -> None:
        """End the actor, and the local cluster with the last worker on it."""
        follower, self._follower = self._follower, None
        actor, self._actor = self._actor, None
        ray, self._ray = self._ray, None
        try:
            if follower is not None:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
            if ray is not None and actor is not None:
                with contextlib.suppress(Exception):
                    await self._unless_gone(asyncio.wait_for(actor.close.remote(), 10))
                with contextlib.suppress(Exception):
                    await self._unless_gone(asyncio.to_thread(ray.kill, actor))
            if ray is not None and self._placement is not None and self._placed:
                self._placed = False
                with contextlib.suppress(WorkerLost):
                    await self._unless_gone(self._placement.free(ray))
        finally:
            self._tokens.read()  # its attempts may continue on other workers, from its last tokens
            self._tokens.report_all()
            self._tokens.close()
            gone, self._gone = self._gone, None
            if gone is not None:
                gone.cancel()
            if ray is not None:
                await cluster.leave(self)
        for live in list(self._live.values()):
            live.push(Result(value="", finish="cancelled"))
        self._health.put_nowait(None)
        self._cache.close()

    async def stats(self) -> dict[str, int]:
        """Return the hosted worker's counters."""
        if self._actor is None:
            return {}
        return await self._unless_gone(reply(self._actor.stats))

    # -- the actor ---------------------------------------------------------------------------------------------------

    async def _make(self) -> None:
        """Make the actor and wait until its worker has started."""
        ray, head = self._ray, self._head
        assert head is not None
        await self._unless_gone(head.wait_for_answer())
        # Whether the cluster has GPUs can be asked only once it has been joined.
        if self._any_gpus:
            self._wanted["GPU"], self._any_gpus = await asyncio.to_thread(cluster.default_gpus, ray), False
        lacking = await self._unless_gone(asyncio.to_thread(cluster.missing, ray, self._wanted, self._count))
        if lacking is not None:
            raise WorkerError(f"{self.name} cannot be placed: {lacking}; ask for less, or add a node")
        self._count = 1  # when one of them is made again, those that are lost are not its matter
        wanted = dict(self._wanted)
        room: dict[str, Any] = {}
        if self._placement is not None:
            room["scheduling_strategy"] = await self._in_group(ray, self._placement)
        remote = ray.remote(ActorHost).options(
            num_cpus=wanted.pop("CPU"),
            num_gpus=wanted.pop("GPU"),
            resources=wanted or None,
            max_concurrency=MAX_CALLS,
            max_restarts=0,  # made again here, where the hosted worker can be started again as well
            **room,
        )
        actor = remote.remote(self._spec, self._options)
        started = asyncio.ensure_future(reply(actor.start, self._tokens.open()))
        started.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may end after we gave it up
        try:
            waiting = asyncio.wait_for(asyncio.shield(started), self._start_timeout)
            self.pid, wrong, facts = await self._unless_gone(waiting)
        except TimeoutError:
            # The actor is ended, or it would take its resources later, when no caller waits for it.
            free = await asyncio.to_thread(ray.available_resources)
            ray.kill(actor)
            raise WorkerError(
                f"{self.name} did not start within {self._start_timeout:g} s: it wants {self._wanted['CPU']:g} CPU and "
                f"{self._wanted['GPU']:g} GPU, and {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free now"
            ) from None
        except asyncio.CancelledError:
            ray.kill(actor)
            raise
        except WorkerError:
            raise
        except Exception as error:
            raise WorkerError(f"{self.name} died while it started: {first_line(error)}") from error
        self._tokens.opened()
        # The hosted worker's own error came back as a value, since Ray would hide it behind one of its own.
        if wrong is not None:
            ray.kill(actor)
            raise EngineError(wrong)
        for name, value in facts.items():
            setattr(self, name, value)
        self._actor, self._calls = actor, 0

    async def _in_group(self, ray: Any, placement: cluster.Placement) -> Any:
        """Return the strategy that puts the actor into its bundle."""
        group = await placement.take(ray, self._start_timeout) if not self._placed else await placement.again()
        self._placed = True
        strategies = ray.util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=self._bundle)

    async def _follow(self) -> None:
        """Read reports until the actor dies; then restart it, up to the limit."""
        clock = asyncio.get_running_loop().time
        restarts: deque[float] = deque()
        while True:
            reason = await self._read()
            self.lost = reason
            actor, self._actor = self._actor, None
            while restarts and clock() - restarts[0] > HOUR:
                restarts.popleft()
            left = len(restarts) < self._restarts
            restarts.append(clock())
            # Without a cluster there is nowhere to make another, and no prompt is to blame.
            if self._gone is not None and self._gone.done():
                log.warning("%s does not come back: %s", self.name, reason)
                left = False
            else:
                self._quarantine.died([live.job for live in self._live.values() if live.is_sent], reason=reason)
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)
            self._tokens.read()  # what a dead actor has written is still there
            self._tokens.report_all()
            if left:
                self._health.put_nowait(False)
                await asyncio.sleep(0)  # who reads it reports the loss of the worker before that of its jobs
            lost = as_failure(WorkerLost(f"{self.name} died: {reason}"))
            for live in list(self._live.values()):
                live.push(lost)
            self._outbox.clear()
            self._given_up.clear()
            if not left:
                break
            if not await self._made_again(restarts):
                break
            self._health.put_nowait(True)
        self._health.put_nowait(None)

    async def _made_again(self, restarts: deque[float]) -> bool:
        """Make another actor; return whether there is one. If its node is not back yet, or the actor dies while it
        starts, this is retried while restarts are left. An error of its own, such as a missing model, would recur."""
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._make()
                return True
            except Exception as error:  # Ray's own errors too: a cluster that went away
                gone = self._gone is not None and self._gone.done()
                if gone or isinstance(error, EngineError) or len(restarts) >= self._restarts:
                    log.warning("%s does not come back: %s", self.name, error)
                    return False
                log.warning("%s is not back yet: %s", self.name, error)
            restarts.append(asyncio.get_running_loop().time())
            await asyncio.sleep(pause)
            pause *= 2

    async def _read(self) -> str:
        """Dispatch reports as they come; return the reason why they end."""
        actor, gone = self._actor, self._gone
        assert gone is not None
        health = asyncio.ensure_future(reply(actor.watch))
        silent = asyncio.ensure_future(hangs(actor, self._silence, self._follows_pace))
        sent: asyncio.Task[Any] | None = None
        replies = self._replies
        try:
            while True:
                if not replies:
                    # Jobs that follow from these reports may go with the call that waits for more.
                    sent = asyncio.ensure_future(self._sent.wait())
                    await asyncio.wait([sent], timeout=FOLLOW_SECONDS)
                    sent.cancel()
                if not replies:
                    # One call always waits in the actor, so reports need no call of their own.
                    self._exchange()
                newest = replies[0]
                await asyncio.wait([newest, health, silent, gone], return_when=asyncio.FIRST_COMPLETED)
                # The cluster is checked first: when it is lost, the other two only report a broken connection.
                if not newest.done():
                    over = next(task for task in (gone, silent, health) if task.done())
                    return over.result() or "its worker ended"
                replies.popleft()
                self._sent.clear()
                for news in newest.result():
                    if isinstance(news, TokenBatch):
                        self._tokens.keep(news)
                    elif isinstance(news, CacheUpdate):
                        self._cache.put(news)
                    elif (live := self._live.get(news[0])) is not None:
                        live.push(news[1])
        except Exception as error:
            return first_line(error)
        finally:
            left = [health, silent, *replies, *([sent] if sent is not None else ())]
            replies.clear()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _unless_gone(self, reply: Awaitable[T]) -> T:
        """Await something of Ray's. Raises `WorkerLost` if the cluster goes away before it comes."""
        assert self._gone is not None
        waiting = asyncio.ensure_future(reply)
        try:
            await asyncio.wait([waiting, self._gone], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise WorkerLost(f"{self.name}: {self._gone.result()}")
            return waiting.result()
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])  # one that had not begun would be reported as forgotten

    def _call(self) -> None:
        """Send jobs and cancels, once all that are due now have gathered."""
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send the jobs and cancels that have gathered, in one call: a vote that is decided gives up many at once."""
        jobs, self._outbox = self._outbox, []
        given_up, self._given_up = self._given_up, []
        self._called = False
        if self._actor is None:
            return
        try:
            self._exchange(jobs, given_up)
        except Exception as error:  # what cannot be pickled
            self._given_up += given_up
            if len(jobs) > 1:  # the others need not fail with it
                for job in jobs:
                    self._outbox = [job]
                    self._send()
                return
            refused = WorkerError(f"{self.name} cannot receive the job: {first_line(error)}")
            for job in jobs:
                if (live := self._live.get(job.attempt)) is not None:
                    live.push(as_failure(refused))

    def _exchange(self, jobs: Sequence[Job] = (), given_up: Sequence[int] = ()) -> None:
        """Send jobs and cancels to the actor; its reports are the reply."""
        answer = self._actor.exchange.remote(self._calls, jobs, given_up)
        self._calls += 1
        self._replies.append(asyncio.ensure_future(answered(answer)))
        self._sent.set()


def pool(
    count: int = 1,
    host: str = "plait.workers.engine:Engine",
    options: Mapping[str, Any] | None = None,
    *,
    num_cpus: float = 1,
    num_gpus: float | None = 0,
    cores: Sequence[int] | None = None,
    strategy: str | None = None,
    start_timeout: float = 180.0,
    least: int | None = None,
    patience: float | None = None,
) -> list[RayWorker]:
    """Return `count` workers with the same host and options, each reserving `num_cpus` and `num_gpus` (`None`: one GPU
    where the cluster has some). `start_timeout`: seconds for each to find room and start. `least`: how many of them
    have to find room at the start, where the others come with the load. `patience`: seconds that a local cluster has to
    start; by default as long as it takes.

    `strategy` (`PACK`, `SPREAD`, `STRICT_PACK`, `STRICT_SPREAD`) reserves their room together, in a placement group:
    all of them find room, or none starts. Engines send a checkpoint of their token ids every few steps, so that the
    work of a dead one is not done again; `options={"checkpoint": 0}` turns that off.

    Engines on this machine without GPUs get cores of their own (of `cores`, by default all), since two engines that
    share cores slow each other down a hundredfold. On a cluster elsewhere (`RAY_ADDRESS`) cores are the cluster's
    matter, and an engine has as many compute threads as it reserves CPUs. An engine with a part of a GPU takes that
    part of its memory, unless `gpu_memory_utilization` says otherwise. Raises `WorkerError` for too few cores.
    """
    options = dict(options or {})
    usable = list(cores) if cores is not None else usable_cores()
    here = host.endswith(":Engine") and not num_gpus and "RAY_ADDRESS" not in os.environ
    share = len(usable) // count
    # Two engines on one core would be a hundred times as slow, not twice.
    if here and not share:
        raise WorkerError(f"{count} engines need {count} cores, and there are {len(usable)}: use fewer engines")
    placement = None
    if strategy is not None:
        placement = cluster.Placement([{"CPU": num_cpus, "GPU": num_gpus}] * count, strategy)
    workers: list[RayWorker] = []
    quarantine = Quarantine()
    for index in range(count):
        own = dict(options)
        if host.endswith(":Engine"):
            own.setdefault("checkpoint", CHECKPOINT_STEPS)
            if num_gpus and num_gpus < 1:
                # vLLM takes nine tenths of the GPU by default, but other actors reserve the rest.
                own["engine_args"] = {"gpu_memory_utilization": round(0.9 * num_gpus, 3)} | own.get("engine_args", {})
        if here:
            if count > 1:
                own.setdefault("cpu_list", usable[index * share : (index + 1) * share])
            # said outright: Ray tells what it runs to compute with one thread for each CPU reserved
            own.setdefault("threads", default_threads(local_model(str(own.get("model", ""))), own.get("cpu_list")))
        room: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "placement": placement, "bundle": index}
        room |= {"count": least or count, "start_timeout": start_timeout, "quarantine": quarantine}
        room["patience"] = patience
        workers.append(RayWorker(host, own, name=f"engine-{index}", **room))
    return workers
