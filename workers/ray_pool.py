"""Workers inside Ray actors: an engine that lives in a process of its own, on this machine or another.

Decides when an actor is made, watched and made again. Jobs go out in batches and news come back in batches, on one
standing call per actor. It does not know what the hosted worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from orchestrator.core.base import Progress, Worker
from orchestrator.core.errors import EngineError, WorkerError, WorkerLost, as_failure
from orchestrator.core.events import Job
from orchestrator.core.ir import Failure, Kind, Result

from . import _ray_cluster as cluster
from ._ray_host import Host, load
from ._resources import default_threads, local_model, usable_cores
from ._stream import Stream

__all__ = ["RayWorker", "pool"]

log = logging.getLogger("plait.ray")

CHECKPOINT = 2
"""Engine steps between two accounts of the ids generated: what a dead engine's branches may lose."""
MAX_CALLS = 10_000
"""Calls that an actor takes at the same time; a job is not a call, so this only has to cover cancels."""


class RayWorker(Worker):
    """Hosts a worker in a Ray actor.

    Options: `host`, the class as `pkg.mod:Class`; `options`, its keyword arguments; `num_cpus`, `num_gpus` and
    `resources`, what the actor reserves; `restarts`, how often an actor that died is made again; `start_timeout`,
    seconds for the cluster to find room for the actor and for the hosted worker to start; `placement` and `bundle`,
    room that was reserved together with that of others.

    When the actor dies its jobs fail with `WorkerLost`, which the scheduler tries again elsewhere or when it is back,
    from the token ids that it had told.
    """

    def __init__(
        self,
        host: str = "workers.engine:Engine",
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "engine-0",
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: Mapping[str, float] | None = None,
        restarts: int = 3,
        start_timeout: float = 180.0,
        placement: cluster.Placement | None = None,
        bundle: int = 0,
    ) -> None:
        self.name = name
        self._spec, self._options = host, dict(options or {})
        described = load(host, self._options)  # made here only to be asked; nothing is loaded before `start`
        self.slots: int = described.slots
        self.serves: tuple[Kind, ...] = described.serves
        self.pid: int | None = None
        """Process id of the actor."""
        self._wanted = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
        self.models: tuple[str, ...] = tuple(getattr(described, "models", ()))
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self._restarts, self._start_timeout = restarts, start_timeout
        self._placement, self._bundle, self._placed = placement, bundle, False
        self._ray: Any = None
        self._actor: Any = None
        self._streams: dict[int, Stream] = {}
        self._outbox: list[Job] = []
        self._health: asyncio.Queue[bool | None] = asyncio.Queue()
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join or start Ray, make the actor, start the hosted worker. Raises `WorkerError` (or `EngineError` from
        it)."""
        if self._ray is not None:
            return
        self._health = asyncio.Queue()
        self._ray = await cluster.join()
        try:
            await self._make()
        except BaseException:
            await self.close()
            raise
        self._health.put_nowait(True)
        self._follower = asyncio.create_task(self._follow())

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Send a job to the actor and yield its news."""
        if self._actor is None:
            yield as_failure(WorkerLost(f"{self.name} is down"))
            return
        stream = self._streams[job.attempt] = Stream()
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append(job)
        try:
            async for item in stream:
                yield item
        finally:
            self._streams.pop(job.attempt, None)
            if not stream.ended and self._actor is not None:
                self._actor.cancel.remote(job.attempt)

    async def cancel(self, attempt: int) -> None:
        """Stop an attempt in the actor."""
        if self._actor is not None and attempt in self._streams:
            self._send()
            self._actor.cancel.remote(attempt)

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True` when the actor is ready, `False` when it died and is being made again; end when it is gone."""
        while (healthy := await self._health.get()) is not None:
            yield healthy

    async def close(self) -> None:
        """End the actor, and the local cluster with the last worker on it."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        actor, self._actor = self._actor, None
        ray, self._ray = self._ray, None
        if actor is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(actor.close.remote(), 10)
        if ray is not None:
            if actor is not None:
                await asyncio.to_thread(ray.kill, actor)
            if self._placement is not None and self._placed:
                self._placed = False
                await self._placement.free(ray)
            await cluster.leave()
        for stream in list(self._streams.values()):
            stream.push(Result(value="", finish="cancelled"))
        self._health.put_nowait(None)

    async def stats(self) -> dict[str, int]:
        """Return the hosted worker's counters."""
        return await self._actor.stats.remote() if self._actor is not None else {}

    # -- the actor ---------------------------------------------------------------------------------------------------

    async def _make(self) -> None:
        """Make the actor and wait until its worker has started."""
        ray = self._ray
        lacking = await asyncio.to_thread(cluster.missing, ray, {k: v for k, v in self._wanted.items() if v})
        if lacking is not None:
            raise WorkerError(f"{self.name} cannot be placed: {lacking}; ask for less, or add a node")
        wanted = dict(self._wanted)
        room: dict[str, Any] = {}
        if self._placement is not None:
            room["scheduling_strategy"] = await self._in_group(ray, self._placement)
        remote = ray.remote(Host).options(
            num_cpus=wanted.pop("CPU"),
            num_gpus=wanted.pop("GPU"),
            resources=wanted or None,
            max_concurrency=MAX_CALLS,
            max_restarts=0,  # made again here, where the hosted worker can be started again as well
            **room,
        )
        actor = remote.remote(self._spec, self._options)
        started = asyncio.ensure_future(_reply(actor.start))
        started.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may end after we gave it up
        try:
            self.pid, wrong, facts = await asyncio.wait_for(asyncio.shield(started), self._start_timeout)
        except TimeoutError:
            free = await asyncio.to_thread(ray.available_resources)
            ray.kill(actor)
            raise WorkerError(
                f"{self.name} did not start within {self._start_timeout:g} s: it wants {self._wanted['CPU']:g} CPU and "
                f"{self._wanted['GPU']:g} GPU, and {free.get('CPU', 0):g} and {free.get('GPU', 0):g} are free now"
            ) from None
        except asyncio.CancelledError:
            ray.kill(actor)
            raise
        except Exception as error:
            raise WorkerError(f"{self.name} died while it started: {_first_line(error)}") from error
        if wrong is not None:
            ray.kill(actor)
            raise EngineError(wrong)
        for name, value in facts.items():
            setattr(self, name, value)
        self._actor = actor

    async def _in_group(self, ray: Any, placement: cluster.Placement) -> Any:
        """Return the strategy that puts the actor into its bundle."""
        group = await placement.take(ray, self._start_timeout) if not self._placed else await placement.again()
        self._placed = True
        strategies = ray.util.scheduling_strategies
        return strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=self._bundle)

    async def _follow(self) -> None:
        """Read news until the actor dies; then make another, as often as is allowed."""
        for left in range(self._restarts, -1, -1):
            reason = await self._read()
            actor, self._actor = self._actor, None
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
            if left:
                self._health.put_nowait(False)
            lost = as_failure(WorkerLost(f"{self.name} died: {reason}"))
            for stream in list(self._streams.values()):
                stream.push(lost)
            self._outbox.clear()
            if not left:
                break
            try:
                await self._make()
            except Exception as error:  # Ray's own errors too: a cluster that went away
                log.warning("%s does not come back: %s", self.name, error)
                break
            self._health.put_nowait(True)
        self._health.put_nowait(None)

    async def _read(self) -> str:
        """Hand out news as they come; return why no more will."""
        actor = self._actor
        watch = asyncio.ensure_future(_reply(actor.watch))
        news = watch
        try:
            while True:
                news = asyncio.ensure_future(_reply(actor.news))
                await asyncio.wait([news, watch], return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    return "its worker ended"
                for attempt, item in news.result():
                    stream = self._streams.get(attempt)
                    if stream is not None:
                        stream.push(item)
        except Exception as error:
            return _first_line(error)
        finally:
            watch.cancel()
            news.cancel()
            await asyncio.gather(watch, news, return_exceptions=True)

    def _send(self) -> None:
        """Send the jobs that have gathered, in one call."""
        jobs, self._outbox = self._outbox, []
        if jobs and self._actor is not None:
            self._actor.submit.remote(jobs)


def pool(
    count: int = 1,
    host: str = "workers.engine:Engine",
    options: Mapping[str, Any] | None = None,
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    cores: Sequence[int] | None = None,
    strategy: str | None = None,
) -> list[RayWorker]:
    """Return `count` workers that host the same thing, each reserving `num_cpus` and `num_gpus`.

    `strategy` (`PACK`, `SPREAD`, `STRICT_PACK`, `STRICT_SPREAD`) reserves their room together, in a placement group:
    all of them find room, or none starts. Engines tell the ids they generate every few steps, so that what a dead one
    had done is not done again; `options={"checkpoint": 0}` turns that off.

    Engines on this machine without GPUs get cores of their own (of `cores`, by default all), since two engines that
    share cores slow each other down a hundredfold. On a cluster elsewhere (`RAY_ADDRESS`) cores are the cluster's
    matter, and an engine has as many compute threads as it reserves CPUs. Raises `WorkerError` for too few cores.
    """
    options = dict(options or {})
    usable = list(cores) if cores is not None else usable_cores()
    here = host.endswith(":Engine") and not num_gpus and "RAY_ADDRESS" not in os.environ
    share = len(usable) // count
    if here and not share:
        raise WorkerError(f"{count} engines need {count} cores, and there are {len(usable)}: use fewer engines")
    placement = None
    if strategy is not None:
        bundle = {kind: amount for kind, amount in (("CPU", num_cpus), ("GPU", num_gpus)) if amount}
        placement = cluster.Placement([bundle] * count, strategy.upper().replace("-", "_"))
    workers: list[RayWorker] = []
    for index in range(count):
        own = dict(options)
        if host.endswith(":Engine"):
            own.setdefault("checkpoint", CHECKPOINT)
        if here:
            if count > 1:
                own.setdefault("cpu_list", usable[index * share : (index + 1) * share])
            # said outright: Ray tells what it runs to compute with one thread for each CPU reserved
            own.setdefault("threads", default_threads(local_model(str(own.get("model", ""))), own.get("cpu_list")))
        room: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "placement": placement, "bundle": index}
        workers.append(RayWorker(host, own, name=f"engine-{index}", **room))
    return workers


async def _reply(method: Any) -> Any:
    return await method.remote()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
