"""A server of this process over scripted workers, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from plait import AsyncOrchestrator, Config
from plait.core.interfaces import Worker
from plait.workers.scripted import Reply, Scripted

pytest.importorskip("uvicorn", reason="the server's packages are not installed: pip install 'plait[serve]'")

from plait_server.server import Server
from plait_server.service import Service
from plait_server.settings import Settings


@dataclass
class Served:
    """A server that runs."""

    url: str
    service: Service
    worker: Any
    server: Server
    clients: contextlib.AsyncExitStack

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    def client(self, key: str = "none", **options: Any) -> Any:
        openai = pytest.importorskip("openai")
        client = openai.AsyncOpenAI(base_url=self.base, api_key=key, **{"max_retries": 0, **options})
        self.clients.push_async_callback(client.close)
        return client


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """A server in a thread of its own, for all tests of a module."""
    begun: queue.Queue[tuple[Served, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def run() -> None:
        end = asyncio.Event()
        async with _starting()("fine") as served:
            begun.put((served, asyncio.get_running_loop(), end))
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    served, loop, end = begun.get(timeout=300)
    yield served
    loop.call_soon_threadsafe(end.set)
    thread.join(timeout=300)


@pytest.fixture
def serve() -> Serve:
    """Start a server over scripted replies (texts or `Reply`s) or ready-made workers; more are settings."""
    return _starting()


def _starting() -> Serve:
    @contextlib.asynccontextmanager
    async def start(
        *replies: Reply | str, workers: list[Worker] | None = None, journal: str = "off", tools: Any = (),
        config: dict[str, Any] | None = None, **settings: Any,
    ) -> AsyncIterator[Served]:  # fmt: skip
        said = [each if isinstance(each, Reply) else Reply(text=each) for each in replies]
        workers = workers or [Scripted(said or [Reply(text="fine")])]
        orchestrator = AsyncOrchestrator(config=Config(journal=journal, **(config or {})), workers=workers, tools=tools)
        service = Service(orchestrator, Settings(port=0, drain_seconds=2.0, **settings), workers)
        server = Server(service)
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(server.serve())
        try:
            while not (service.ready and server.listening):
                await asyncio.sleep(0.005)
                assert not running.done(), running.result()
            async with contextlib.AsyncExitStack() as clients:
                yield Served(server.url, service, workers[0], server, clients)
            assert not service.live, "runs are left behind"
        finally:
            server.stop()
            await running
        left = [each for each in asyncio.all_tasks() - before if each is not running and not each.done()]
        assert not left, f"tasks are left behind: {left}"

    return start
