"""The process: sockets, signals, and connections that take too long."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from plait.apps.models.standing import joined
from plait.core.errors import ConfigError
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.config import Config
from plait.runtime.driver.garbage_collection import settle

from .app import build
from .connections import LISTEN_BACKLOG, Connections, raise_descriptor_limit
from .service import Service
from .settings import Settings, workers_of

_KEEP_ALIVE = 75
"""Seconds for which an idle connection may be used again. Clients keep theirs for less (httpx for 5 s), so that none
sends a request on one that is just being closed."""
_SWITCH = 0.001
"""Seconds for which a thread that makes a request of a large body may keep the loop waiting at a time."""
HEAD_BYTES = 64 << 10
HEADERS = 200
"""Maximum number of bytes, and of lines, of the head of a request."""


async def run(config: Config, settings: Settings) -> None:
    """Serve until a signal. Raises `ConfigError` for an address that cannot be had."""
    workers = workers_of(config, settings)
    if workers is None:
        config, _ = joined(config)
    config = config.model_copy(update={"worker_wait": settings.upstream_wait})
    service = Service(AsyncOrchestrator(config=config, workers=workers, control=True), settings, workers)
    raise_descriptor_limit()
    server = Server(service, whole_process=True)
    sys.setswitchinterval(_SWITCH)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class Server:
    """uvicorn around a service, with an eye on its connections. `whole_process`: nothing else runs in this one."""

    def __init__(self, service: Service, *, whole_process: bool = False) -> None:
        self._whole_process = whole_process
        self.service, self.settings = service, service.settings
        settings = self.settings
        self._uvicorn = _Quiet(
            uvicorn.Config(
                build(service),
                http=_protocol(),
                loop="asyncio",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=int(settings.drain_seconds) + 1,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                h11_max_incomplete_event_size=HEAD_BYTES,
            ),
            settings,
        )
        self.socket = listen(settings)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.socket.getsockname()[:2]
        return f"http{'s' if self.settings.tls_cert else ''}://{f'[{host}]' if ':' in host else host}:{port}"

    async def serve(self) -> None:
        """Serve until `stop` is called. Raises the errors of an orchestrator that cannot start."""
        watch = asyncio.ensure_future(self._look_after())
        try:
            await self.service.start()
            if self._whole_process:
                settle()
            sys.stderr.write(f"plait serves {self.url}/v1 (ask and look in a browser: {self.url}/)\n")
            await self._uvicorn.serve(sockets=[self.socket])
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await self.service.close()
            self.socket.close()

    @property
    def listening(self) -> bool:
        """Whether the server accepts connections."""
        return self._uvicorn.started

    def stop(self) -> None:
        """End `serve`: new runs are refused, and running runs get `drain_seconds` to end. A second call cancels
        them."""
        self._uvicorn.force_exit = self._uvicorn.should_exit
        self._uvicorn.should_exit = self.service.closing = True

    async def _look_after(self) -> None:
        """Close connections whose request does not arrive, or whose client does not read."""
        seen: dict[Any, tuple[object, float]] = {}
        loop = asyncio.get_running_loop()
        pause = min(1.0, self.settings.header_seconds / 4, self.settings.stalled_seconds / 4)
        while True:
            looked = loop.time()
            await asyncio.sleep(pause)
            passed = min(loop.time() - looked, 2 * pause)  # where we were late ourselves, clients are not to blame
            still: dict[Any, tuple[object, float]] = {}
            for connection in list(self._uvicorn.server_state.connections):
                mark, most = self._mark(connection)
                before, waited = seen.get(connection, (None, 0.0))
                waited = waited + passed if before == mark else 0.0
                if mark is not None and waited > most:
                    connection.transport.abort()
                    continue
                still[connection] = (mark, waited)
            seen = still

    def _mark(self, connection: Any) -> tuple[object, float]:
        """Return the state in which a connection waits (`None`: without a time limit), and that limit in seconds."""
        transport, cycle = connection.transport, connection.cycle
        waiting = transport.get_write_buffer_size() if transport is not None else 0
        if waiting:
            return ("written", waiting), self.settings.stalled_seconds
        if cycle is None or (cycle.response_complete and connection.timeout_keep_alive_task is None):
            return ("head", id(cycle)), self.settings.header_seconds  # an idle kept connection is uvicorn's to close
        return None, 0.0


class _Quiet(uvicorn.Server):
    """Leaves signals to the caller, and accepts connections within the limits of the settings."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings
        self._accepted: Connections | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections of the one socket."""
        await super().startup(sockets=[])
        assert sockets is not None
        config, state = self.config, self.lifespan.state
        protocol: Any = config.http_protocol_class

        def make() -> Any:
            return protocol(config=config, server_state=self.server_state, app_state=state)

        self._accepted = Connections(sockets[0], make, self._settings, config.ssl)
        self._accepted.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then let requests end."""
        if self._accepted is not None:
            self._accepted.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(settings: Settings) -> socket.socket:
    """Return a listening socket of the address. Raises `ConfigError`."""
    made = None
    try:
        info = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Its protocol too: asyncio sets TCP_NODELAY only on connections that name it, and without that the body of an
        # answer waits 40 ms for the client's acknowledgement of the head.
        made = socket.socket(*info[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(info[4])
        made.listen(LISTEN_BACKLOG)
        made.setblocking(False)
    except OSError as error:
        if made is not None:
            made.close()
        raise ConfigError(
            f"{settings.host}:{settings.port} cannot be listened at ({error.strerror or error}): choose another with "
            "--host and --port"
        ) from None
    return made


def _protocol() -> Any:
    """Return the reader of HTTP: httptools if it is there, with a bound on heads, which it lacks; else h11."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class BoundedHeads(HttpToolsProtocol):
        """Refuses heads that are too long."""

        _size = _lines = 0
        _in_head = False

        def data_received(self, data: bytes) -> None:
            """Take what has arrived."""
            super().data_received(data)
            if self._in_head:  # a line that is not complete is in no header yet
                self._size += len(data)
                if self._size > 2 * HEAD_BYTES and not self.transport.is_closing():
                    self.send_400_response("the head of the request is too long")

        def on_message_begin(self) -> None:
            """Begin another request."""
            self._size, self._lines, self._in_head = 0, 0, True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            """Begin the body. Raises `ValueError` for HTTP/0.9, whose answers have no head: a proxy before the server
            would take the body for anything."""
            assert self.parser is not None
            if self.parser.get_http_version() not in ("1.0", "1.1"):
                raise ValueError("the request is not HTTP/1")
            self._in_head = False
            super().on_headers_complete()

        def on_url(self, url: bytes) -> None:
            """Take a piece of the address."""
            self._more(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            """Take a line of the head."""
            self._lines += 1
            self._more(len(name) + len(value))
            super().on_header(name, value)

        def _more(self, size: int) -> None:
            self._size += size
            if self._size > HEAD_BYTES or self._lines > HEADERS:
                raise ValueError("the head of the request is too long")

    return BoundedHeads
