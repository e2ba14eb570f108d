"""Membership in the processes that share a store: execute their orders about this orchestrator's runs, and take over
the runs of dead processes of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from ...core.errors import PlaitError, RunTaken
from ...core.events import LoadShared
from ..driver.driver import Driver
from ..journal.location import Database
from ..journal.store_membership import ProcessMember, RunOrder, acquire, release
from .config import Config
from .handle import Handle

log = logging.getLogger("plait.pool")

_LONGEST = 300.0
"""Most seconds between two tries to take a run over."""


class Pool:
    """The membership of one orchestrator.

    Args:
        config: names the store, the pool and the lease. runs: the active runs, by id. reopen: resumes a run. taken:
        returns the callback for runs that were taken over. driver: whose workers' slots the pool divides
        (`Config.share_slots`).
    """

    def __init__(
        self,
        config: Config,
        runs: Mapping[str, Handle],
        reopen: Callable[..., Awaitable[Handle]],
        taken: Callable[[], Callable[[Handle], object] | None],
        driver: Driver,
    ) -> None:
        assert isinstance(config.journal, Database)
        self._database, self._config, self._runs, self._reopen = config.journal, config, runs, reopen
        self._taken, self._driver = taken, driver
        self._whole = {worker.name: worker.slots for worker in driver.workers if "think" in worker.serves}
        """Slots of the engines, which all processes have together."""
        self._member: ProcessMember | None = None
        self._orphans: asyncio.Queue[str] = asyncio.Queue()
        self._known: set[str] = set()
        """Orphans that are being taken over, or that cannot be."""
        self._waits: dict[str, float] = {}
        """Runs that could not be taken over, with the seconds until the next attempt."""
        self._work: asyncio.Task[None] | None = None
        self._hears: Callable[[RunOrder], None] = self._obey
        self._finds: Callable[[list[str]], None] = self._queue_orphans
        self._shares: Callable[[dict[str, int]], None] = self._divide

    async def open(self) -> None:
        """Join. Raises `ConfigError` for a store that cannot be reached."""
        config, loop = self._config, asyncio.get_running_loop()
        self._member = await asyncio.to_thread(acquire, self._database, config.pool or "", config.pool_lease)

        def told(function: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(function, *arguments)

        self._hears = lambda order: told(self._obey, order)
        self._finds = lambda runs: told(self._queue_orphans, runs)
        self._member.on_order.append(self._hears)
        if config.pool is not None:
            self._member.on_orphans.append(self._finds)
            self._work = asyncio.ensure_future(self._take_over())
        if config.pool is not None and config.share_slots:
            member, machine = self._member, self._driver.machine
            member.wants = lambda: machine.model_steps
            self._shares = lambda wants: told(self._divide, wants)
            member.on_shares.append(self._shares)
        if config.pool is not None and config.share_load:
            driver, workers = self._driver, self._driver.machine.workers

            def exchange(others: dict[str, int] | None) -> dict[str, int]:
                if others is not None:
                    told(lambda: driver.post(LoadShared(driver.now(), others)))
                return {name: workers[name].running for name in self._whole if name in workers}

            self._member.load = exchange

    async def close(self) -> None:
        """Leave."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        member, self._member = self._member, None
        if member is not None:
            member.on_order.remove(self._hears)
            if self._config.pool is not None:
                member.on_orphans.remove(self._finds)
            if self._shares in member.on_shares:
                member.on_shares.remove(self._shares)
            member.load = None
            await asyncio.to_thread(release, member)

    def _obey(self, order: RunOrder) -> None:
        handle = self._runs.get(order.run)
        if handle is None:
            return
        reason = order.value if isinstance(order.value, str) and order.value else "by another process"
        match order.verb:
            case "cancel":
                handle.cancel(reason)
            case "prune":
                steps = {name: step.step for step in handle.steps for name in (step.path, step.step)}
                if order.about in steps:
                    handle.prune(steps[order.about], reason)
            case "pause":
                handle.pause()
            case "resume":
                handle.resume()
            case "set":
                try:
                    handle.limit(**{order.about: None if order.value == "none" else str(order.value)})
                except PlaitError as error:
                    log.warning("run %s: %s cannot be set: %s", order.run, order.about, error)
            case _:
                log.warning("run %s: an order %r is not known", order.run, order.verb)

    def _divide(self, wants: dict[str, int]) -> None:
        """Use this process's part of the slots of each engine."""
        member = self._member
        if member is None:
            return
        engines = max(1, len(self._whole))
        needs = {process: -(-wanted // engines) for process, wanted in wants.items()}
        for worker, slots in self._whole.items():
            part = min(slots, divided(slots, needs).get(member.id, 1))
            if self._driver.resize(worker) != part:
                self._driver.resize(worker, part)

    def _queue_orphans(self, runs: list[str]) -> None:
        for run in runs:
            if run not in self._known and run not in self._runs:
                self._known.add(run)
                self._orphans.put_nowait(run)

    async def _take_over(self) -> None:
        while True:
            run = await self._orphans.get()
            try:
                told = self._taken()
                handle = await self._reopen(run, watch=told is not None, force=True)  # the members of a pool are alike
                if told is not None:
                    told(handle)
                log.info("run %s was taken over: its process had died", run)
            except PlaitError as error:
                log.info("run %s was not taken over: %s", run, error)
                # A run that another process took may be orphaned again. Any other run is retried with growing delays:
                # the store may have been unavailable, or this version may be unable to resume the run.
                if not isinstance(error, RunTaken):
                    self._postpone(run)
                    continue
            except Exception as error:
                log.warning("run %s was not taken over", run, exc_info=error)
                self._postpone(run)
                continue
            self._waits.pop(run, None)
            self._known.discard(run)

    def _postpone(self, run: str) -> None:
        """Let a run be found again after a while."""
        wait = self._waits[run] = min(2 * self._waits.get(run, self._config.pool_lease / 2), _LONGEST)
        asyncio.get_running_loop().call_later(wait, self._known.discard, run)


def divided(slots: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Return each process's number of an engine's slots, by its current need. A process that needs less than an equal
    part gets its need; the other processes divide the rest; spare slots are divided again. Each process gets at least
    one slot, so that none waits for ever: with more processes than slots, the sum exceeds the slots, and the engine's
    own queue holds the excess.

    >>> divided(16, {"a": 100, "b": 2, "c": 0})
    {'a': 13, 'b': 2, 'c': 1}
    """
    parts: dict[str, int] = {}
    left, others = slots, len(wants)
    for process in sorted(wants, key=lambda process: (wants[process], process)):
        parts[process] = max(1, min(wants[process], left // others))
        left, others = left - parts[process], others - 1
    spare = max(0, left)
    for place, process in enumerate(sorted(parts, key=lambda process: (-wants[process], process))):
        parts[process] += spare // len(parts) + (place < spare % len(parts))
    return {process: parts[process] for process in wants}
