"""Whether the server can serve: upstreams that answer, journals that can be written, tenants that can be kept apart.

Only the operator can solve these problems. They make the server not ready and log one warning; tenants get 503, and see
neither paths nor settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import tempfile
import time
from collections.abc import Sequence

from plait.core.errors import ConfigError
from plait.core.events import Action, Event, Failed, WorkerDown, WorkerUp
from plait.core.interfaces import Worker
from plait.machine import Machine
from plait.runtime.journal.connection import connected
from plait.runtime.journal.location import Database, Location

from .errors import ApiError, unavailable
from .tenants import Tenants

log = logging.getLogger("plait.serve")

PROBE_INTERVAL_S = 2.0
_WARNING_INTERVAL_S = 60.0  # between two warnings of one kind of failure of the upstreams
_PROBE_BYTES = 1 << 20
"""Bytes written to see whether a disk has room: a few runs' worth."""


class ServerHealth:
    """A watcher of the orchestrator.

    Args:
        workers: the upstreams, and other workers.
        tenants: those who use them.
        store: where journals and stored responses are written; `None` if nothing is.
        wait_s: seconds for which requests wait for an upstream that went away.
    """

    def __init__(self, workers: Sequence[Worker], tenants: Tenants, store: Location | None, wait_s: float) -> None:
        self._models = {worker.name: worker for worker in workers if "think" in worker.serves}
        self._salted = any(user.salt for user in tenants.users.values())
        self._store, self._wait_s = store, wait_s
        self._away: dict[str, float] = {}
        """By upstream that does not answer: since when."""
        self._probing: asyncio.Task[None] | None = None
        self._store_fails = False
        self._said_unsalted = False
        self._warned: dict[str, float] = {}  # by kind of failure of an upstream: when it was logged

    def __call__(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take one event of the driver's."""
        if isinstance(event, WorkerDown) and event.worker in self._models:
            if event.worker not in self._away:
                self._away[event.worker] = time.monotonic()
                log.warning("upstream %s does not answer%s: requests wait for it, at most %g s", event.worker,
                            f" ({event.reason})" if event.reason else "", self._wait_s)  # fmt: skip
        elif isinstance(event, WorkerUp) and event.worker in self._models:
            if (since := self._away.pop(event.worker, None)) is not None:
                log.warning("upstream %s answers again after %.0f s", event.worker, time.monotonic() - since)
            self._warn_unsalted()
        elif isinstance(event, Failed) and event.failure.kind in ("EngineError", "Overloaded"):
            now, kind = time.monotonic(), event.failure.kind
            if now - self._warned.get(kind, -math.inf) >= _WARNING_INTERVAL_S:
                self._warned[kind] = now
                log.warning("a request to an upstream has failed (%s): %s", kind, event.failure.message)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the server cannot serve, for any reader; empty if it can."""
        problems = ["no upstream answers"] if self._models and len(self._away) == len(self._models) else []
        if self._store_fails:
            problems.append("requests cannot be stored")
        if self.unsalted:
            problems.append("tenants cannot be kept apart")
        return tuple(problems)

    def away(self) -> dict[str, float]:
        """Return the upstreams that do not answer, and for how many seconds."""
        return {name: time.monotonic() - since for name, since in self._away.items()}

    @property
    def unsalted(self) -> tuple[str, ...]:
        """Names of upstreams that do not take the salts of the tenants."""
        if not self._salted:
            return ()
        return tuple(
            name
            for name, worker in self._models.items()
            if name not in self._away and not getattr(worker, "takes_salt", True)
        )

    def check_salt(self, salt: str) -> None:
        """Raise `ApiError` (503) if a request with a salt could reach an upstream that takes none."""
        if salt and self.unsalted:
            raise unavailable()

    def _warn_unsalted(self) -> None:
        if not self._said_unsalted and (names := self.unsalted):
            self._said_unsalted = True
            log.warning("%s cannot isolate the prefix cache of tenants: their requests get 503. Set `salted = false` "
                        "for tenants that may share it, or use vLLM", ", ".join(names))  # fmt: skip

    def note_error(self, error: BaseException) -> None:
        """Take note of an error that a request has met. If the store cannot be written, the server is not ready until
        it can be."""
        cause = error.__cause__ if isinstance(error, ApiError) else error
        if isinstance(cause, ConfigError) and self._probing is None:
            self._probing = asyncio.ensure_future(self._probe(cause))

    async def _probe(self, cause: ConfigError) -> None:
        """Log the cause, and try to write until it succeeds. What is no problem of the store makes nothing not ready:
        else a client that finds such an error could take the server out of service."""
        began = time.monotonic()
        try:
            if await self._is_writable():
                log.warning("a request has failed: %s", cause)
                await asyncio.sleep(PROBE_INTERVAL_S)  # one line for many
                return
            self._store_fails = True
            log.warning("requests fail and the server is not ready: %s", cause)
            while True:
                await asyncio.sleep(PROBE_INTERVAL_S)
                if await self._is_writable():
                    break
            log.warning("requests can be stored again, after %.0f s", time.monotonic() - began)
        finally:
            self._probing, self._store_fails = None, False

    async def _is_writable(self) -> bool:
        return self._store is None or await asyncio.to_thread(is_writable, self._store)

    async def close(self) -> None:
        """Stop probing."""
        if (probing := self._probing) is not None:
            probing.cancel()
            await asyncio.wait([probing])


def is_writable(store: Location) -> bool:
    """Return whether a store takes writes: of a database, a connection; of a folder, the bytes of a few runs."""
    with contextlib.suppress(ConfigError, OSError):
        if isinstance(store, Database):
            with connected(store) as db:
                db.execute("SELECT 1")
            return True
        folder = store if store.is_dir() else store.parent
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * _PROBE_BYTES)
            file.flush()
        return True
    return False
