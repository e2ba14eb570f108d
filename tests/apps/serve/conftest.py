"""A server of this process over scripted workers, and clients for it.

A shared server is another program than one without keys: rights, salts, groups, limits. So each test of an endpoint
runs in three situations: `open` (without keys), `tenant` (an `admin`, as who asks a server without keys is) and `busy`
(the same, while another tenant sends requests of all kinds). A test that names tenants of its own, or is marked
`without_keys(reason)`, runs once. `busy` is among the slow tests, and leaves out those marked `alone(reason)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from plait import AsyncOrchestrator, Config
from plait.core.interfaces import Worker
from plait.workers.scripted import Reply, Scripted

pytest.importorskip("uvicorn", reason="the server's packages are not installed: pip install 'plait[serve]'")

from plait_server.server import Server
from plait_server.service import Service
from plait_server.settings import Settings, Tenant
from plait_server.tenants import hashed, new_key

SITUATIONS = ("open", "tenant", pytest.param("busy", marks=pytest.mark.slow))
KEY, OTHER_KEY = new_key(), new_key()
TENANTS = (
    Tenant(name="me", keys=(hashed(KEY),), admin=True),
    Tenant(name="other", keys=(hashed(OTHER_KEY),)),
)
_KEYS: dict[int, str] = {}
"""By port of a server: the key that requests to it get."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of an endpoint in the three situations."""
    if "serve" not in metafunc.fixturenames:
        return
    own_tenants = "tenants" in inspect.getsource(metafunc.function)
    situations = [each for each in SITUATIONS if not (each not in ("open", "tenant") and _marked(metafunc, "alone"))]
    if own_tenants or _marked(metafunc, "without_keys"):
        situations = situations[:1]
    metafunc.parametrize("situation", situations, indirect=True, ids=lambda name: f"{name}")


def _marked(metafunc: pytest.Metafunc, name: str) -> bool:
    mark = metafunc.definition.get_closest_marker(name)
    assert mark is None or (mark.args and isinstance(mark.args[0], str)), f"{name} needs a reason"
    return mark is not None


@pytest.fixture
def situation(request: pytest.FixtureRequest) -> str:
    """In which situation a test runs."""
    return getattr(request, "param", "open")


@pytest.fixture(scope="session", autouse=True)
def _keys_of_requests() -> Iterator[None]:
    """Send the tenant's key with requests to a server that has it."""
    with pytest.MonkeyPatch.context() as patch:
        for client in (httpx.AsyncClient, httpx.Client):
            patch.setattr(client, "build_request", _with_key(client.build_request))
        yield


def _with_key(build: Callable[..., httpx.Request]) -> Callable[..., httpx.Request]:
    def built(client: Any, *args: Any, **options: Any) -> httpx.Request:
        request = build(client, *args, **options)
        if (key := _KEYS.get(request.url.port or 0)) and OTHER_KEY not in request.headers.get("authorization", ""):
            request.headers["authorization"] = f"Bearer {key}"
        return request

    return built


@contextlib.asynccontextmanager
async def others(url: str) -> AsyncIterator[None]:
    """Have another tenant send requests of all kinds that reach no model."""
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    long = [{"role": "user", "content": [{"type": "text", "text": "x"}] * 20}] * 50

    async def ask(http: httpx.AsyncClient) -> None:
        while True:
            for method, path, body in (
                ("POST", "/v1/chat/completions", {"model": "plait/no-such-planner", "messages": long}),
                ("POST", "/v1/responses/input_tokens", {"model": "", "input": "x" * 20_000}),
                ("GET", "/runs?scope=all", None),
                ("GET", "/v1/chat/completions", None),
            ):
                with contextlib.suppress(httpx.HTTPError):
                    await http.request(method, path, json=body, headers=headers)
                await asyncio.sleep(0.005)

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        busy = [asyncio.ensure_future(ask(http)) for _ in range(3)]
        try:
            yield
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


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

    @property
    def key(self) -> str:
        """The key that requests need; any where there are no tenants."""
        return _KEYS.get(int(self.url.rpartition(":")[2]), "none")

    def client(self, key: str = "none", **options: Any) -> Any:
        openai = pytest.importorskip("openai")
        key = self.key if key == "none" else key
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
def serve(situation: str) -> Serve:
    """Start a server over scripted replies (texts or `Reply`s) or ready-made workers; more are settings."""
    return _starting(situation)


def _starting(situation: str = "open") -> Serve:
    @contextlib.asynccontextmanager
    async def start(
        *replies: Reply | str, workers: list[Worker] | None = None, journal: str = "off", tools: Any = (),
        config: dict[str, Any] | None = None, **settings: Any,
    ) -> AsyncIterator[Served]:  # fmt: skip
        said = [each if isinstance(each, Reply) else Reply(text=each) for each in replies]
        workers = workers or [Scripted(said or [Reply(text="fine")])]
        own_tenants = "tenants" in settings or situation == "open"
        settings = settings if own_tenants else {**settings, "tenants": TENANTS}
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
                if not own_tenants:
                    port = server.socket.getsockname()[1]
                    _KEYS[port] = KEY
                    if service.health.unsalted:  # as an operator says that knows the upstream (`salted = false`)
                        for user in service.tenants.users.values():
                            user.salt = ""
                    clients.callback(_KEYS.pop, port)
                    if situation == "busy":
                        await clients.enter_async_context(others(server.url))
                yield Served(server.url, service, workers[0], server, clients)
            assert not service.live, "runs are left behind"
        finally:
            server.stop()
            await running
        left = [each for each in asyncio.all_tasks() - before if each is not running and not each.done()]
        assert not left, f"tasks are left behind: {left}"

    return start
