"""A model worker as a policy in training: it reports each token's log-probability and the version of the weights that
drew it, and takes new weights while requests run.

For new weights every request is stopped, keeps its token ids, and continues from them with the new weights. Its caller
notices only the delay (`TokenDraws.policies` records the position of the change). The same while the worker sleeps: a
trainer on the same accelerator takes its memory, and may `update` before it calls `wake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from plait.core.errors import ConfigError
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, TokenDraws, Usage
from plait.runtime.driver.worker_proxy import WorkerProxy

__all__ = ["Sampler"]

Load = Callable[[Any], Awaitable[None]]


@dataclass(slots=True)
class _Live:
    """A running job, and the draws of its segments so far."""

    ids: tuple[int, ...]
    known: int
    """Number of ids that another attempt had drawn, whose log-probabilities are unknown."""
    logprobs: tuple[float, ...] = ()
    policies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    usage: Usage = field(default_factory=Usage)
    cancelled: bool = False


class Sampler(WorkerProxy):
    """A worker around another. `load` takes new weights; by default the worker's own method `reload`."""

    def __init__(self, worker: Worker, load: Load | None = None, version: int = 0) -> None:
        super().__init__(worker)
        self.version = version
        """Number of weight updates."""
        self._load: Load | None = load or getattr(worker, "reload", None)
        self._live: dict[int, _Live] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._inside = 0
        self._changes = asyncio.Lock()
        self._asleep = False

    async def sleep(self) -> None:
        """Stop running requests, hold them and new ones until `wake`, and call the worker's own method `sleep`, if it
        has one."""
        async with self._changes:
            await self._stop_requests()
            self._asleep = True
            if (sleep := getattr(self.inner, "sleep", None)) is not None:
                await sleep()

    async def wake(self) -> None:
        """Wake the worker up. Held requests continue from their tokens with the weights that are there now."""
        async with self._changes:
            if self._asleep and (wake := getattr(self.inner, "wake", None)) is not None:
                await wake()
            self._asleep = False
            self._open.set()

    async def update(self, weights: Any, version: int | None = None) -> int:
        """Take new weights and return their version, by default the next one. Running requests continue with them from
        their present position.

        Raises `ConfigError` for a worker without this feature, and the worker's errors; then the old weights stay.
        """
        if self._load is None:
            raise ConfigError(
                f"the worker {self.inner.name!r} cannot take new weights: use the worker `engine`, which can, or "
                "restart with the new model"
            )
        async with self._changes:
            try:
                await self._stop_requests()
                await self._load(weights)
                self.version = self.version + 1 if version is None else version
                return self.version
            finally:
                if not self._asleep:
                    self._open.set()

    async def _stop_requests(self) -> None:
        self._open.clear()
        for attempt in list(self._live):
            await self.inner.cancel(attempt)
        await self._idle.wait()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Run a job across all weight updates meanwhile."""
        think = job.op
        if not isinstance(think, ModelCall):
            async for item in self.inner.run(job):
                yield item
            return
        sampling = think.sampling.model_copy(update={"token_logprobs": True, "logprobs": think.sampling.logprobs or 1})
        job = replace(job, op=think.model_copy(update={"sampling": sampling}))
        live = self._live[job.attempt] = _Live(tuple(job.generated), len(job.generated))
        try:
            while True:
                await self._open.wait()
                if live.cancelled:
                    yield Result(value="", token_ids=live.ids, usage=live.usage, finish="cancelled")
                    return
                ended: Result | Failure | None = None
                async for item in self._stretch(replace(job, generated=live.ids), live):
                    if isinstance(item, Progress):
                        yield item
                    else:
                        ended = item
                if not isinstance(ended, Result) or not self._goes_on(ended, live):
                    yield (
                        _merged(ended, live)
                        if isinstance(ended, Result)
                        else ended
                        or Failure(kind="WorkerLost", message=f"{self.name} ended without a result", lost=True)
                    )
                    return
        finally:
            del self._live[job.attempt]

    async def cancel(self, attempt: int) -> None:
        """Stop an attempt, for good."""
        if (live := self._live.get(attempt)) is not None:
            live.cancelled = True
        await self.inner.cancel(attempt)

    async def _stretch(self, job: Job, live: _Live) -> AsyncIterator[Progress | Result | Failure]:
        """Run a job with the current weights."""
        version, start = self.version, len(live.ids)
        self._inside += 1
        self._idle.clear()
        try:
            async for item in self.inner.run(job):
                if isinstance(item, Result):
                    _take(item, live, start, version)
                yield item
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle.set()

    def _goes_on(self, ended: Result, live: _Live) -> bool:
        """Return whether a job was stopped only for new weights."""
        return ended.finish == "cancelled" and not live.cancelled and not self._open.is_set()


def _take(result: Result, live: _Live, start: int, version: int) -> None:
    """Add the draws of one segment."""
    live.usage = live.usage + result.usage
    new = tuple(result.token_ids[start:])
    told = () if result.drawn is None else result.drawn.logprobs
    live.logprobs += told[len(told) - len(new) :] if len(told) >= len(new) else ()
    drew = new or (result.finish == "stop" and result.drawn is not None and result.drawn.end is not None)
    if drew and (not live.policies or live.policies[-1][1] != version):
        live.policies.append((start, version))
    live.ids = tuple(result.token_ids)


def _merged(result: Result, live: _Live) -> Result:
    """Return the last segment's result with the draws of all segments. If some draws are unknown, it has no
    log-probabilities: trainers reject a record without them, but would accept wrong ones."""
    count = len(result.token_ids)
    whole = not live.known and len(live.logprobs) >= count
    drawn = (result.drawn or TokenDraws()).model_copy(
        update={"logprobs": live.logprobs[:count] if whole else (), "policies": tuple(live.policies)}
    )
    return result.model_copy(update={"drawn": drawn, "usage": live.usage})
