"""`plait serve` in a thread of this process, for frameworks that want the address of a model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from plait.core.interfaces import Worker
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config

from ..server import Server
from ..service import Service
from ..settings import Settings, workers_of


@contextlib.contextmanager
def local_server(
    config: Config | None = None, *, workers: Sequence[Worker] | None = None, **settings: Any
) -> Iterator[str]:
    """Serve the OpenAI API on a free port of 127.0.0.1 while the block runs; yields the base URL, `http://…/v1`.

    Args:
        config: as for `Orchestrator`; by default what environment and file say. `settings` are further fields of it,
            such as `base_url="http://localhost:8000/v1"`.
        workers: run the steps, in place of those that the configuration names.

    Raises what the orchestrator raises when it cannot start.
    """
    config = config or Config.load(**settings)
    ready: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(config, workers, ready)), name="plait-serve", daemon=True
    )
    thread.start()
    server, loop = ready.result()
    try:
        yield f"{server.url}/v1"
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join()


async def _serve(
    config: Config, given: Sequence[Worker] | None, ready: Future[tuple[Server, asyncio.AbstractEventLoop]]
) -> None:
    try:
        settings = Settings(port=0)
        workers = list(given) if given is not None else workers_of(config, settings)
        server = Server(Service(AsyncOrchestrator(config=config, workers=workers), settings, workers))
        work = asyncio.ensure_future(server.serve())
        while not (server.listening or work.done()):  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        if not work.done():
            ready.set_result((server, asyncio.get_running_loop()))
        await work
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)
