"""`plait serve --check`: whether a server with these settings would serve, without serving."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from plait.core.errors import PlaitError
from plait.core.interfaces import Worker, offer
from plait.runtime.client.config import Config
from plait.runtime.journal.connection import connected
from plait.runtime.journal.directory import place
from plait.runtime.journal.location import Database

from .health import is_writable
from .server import listen
from .settings import Settings, workers_of
from .tenants import Tenants


async def check(config: Config, settings: Settings, report: Callable[[str], Any]) -> bool:
    """Check the address, the upstreams, the tenants and the journals, and report a line for each.

    Returns whether a server would serve: one upstream is enough unless `require_all` is set.
    """
    failed = [
        await _line(report, f"address {settings.host}:{settings.port}", _check_address(settings)),
        await _line(report, "journals", _check_journals(config)),
    ]
    tenants = Tenants(settings)
    salted = [user.name for user in tenants.users.values() if user.salt]
    ups: list[bool] = []
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers_of(config, settings):
            if "think" in worker.serves:
                ups.append(not await _line(report, f"upstream {worker.name}", _check_upstream(stack, worker, salted)))
    report(f"ok    tenants: {', '.join(tenants.users) or 'none, anyone who reaches the server may use it'}")
    return not any(failed) and (all(ups) if settings.require_all else any(ups) or not ups)


async def _line(report: Callable[[str], Any], what: str, work: Awaitable[str]) -> bool:
    """Report a check; return whether it failed."""
    try:
        report(f"ok    {what}: {await work}")
        return False
    except (PlaitError, OSError) as error:
        report(f"fail  {what}: {error}")
        return True


async def _check_address(settings: Settings) -> str:
    listen(settings).close()
    for file in (settings.tls_cert, settings.tls_key):
        if file is not None:
            os.close(os.open(file.expanduser(), os.O_RDONLY))
    return "free"


async def _check_journals(config: Config) -> str:
    if config.journal == "off":
        return "off: responses in the background do not survive the process"
    store = place(config)
    if isinstance(store, Database):
        await asyncio.to_thread(_connect, store)
        return f"{store}"
    there = next(path for path in (store, *store.parents) if path.exists())  # the first run makes the folders below it
    if (there != store and there.is_file()) or not await asyncio.to_thread(is_writable, there):
        raise OSError(f"{store} cannot be written: check space and permissions")
    return f"{store}"


def _connect(store: Database) -> None:
    with connected(store):
        pass


async def _check_upstream(stack: contextlib.AsyncExitStack, worker: Worker, salted: list[str]) -> str:
    if hasattr(worker, "allow_unreachable"):
        setattr(worker, "allow_unreachable", False)  # noqa: B010  (a check waits for nothing)
    await stack.enter_async_context(_started(worker))
    if salted and not getattr(worker, "takes_salt", True):
        raise OSError(f"it cannot isolate the prefix cache of tenants, and {', '.join(salted)} would get 503: set "
                      "`salted = false` for tenants that may share it, or use vLLM")  # fmt: skip
    return f"{offer(worker).slots} slots, models: {', '.join(offer(worker).models) or 'any name'}"


@contextlib.asynccontextmanager
async def _started(worker: Worker) -> AsyncIterator[None]:
    try:
        await worker.start()
        yield
    finally:
        await worker.close()
