"""Accept connections, limited by the file descriptors of the process, and by a share of them per address.

asyncio's own listener takes what comes until descriptors run out, and then logs a traceback for each try. Clients that
send nothing, and so need no key, could stop the server and fill its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

from .settings import Settings

log = logging.getLogger("plait.serve")

LISTEN_BACKLOG = 512
"""Connections that the kernel keeps while the event loop is busy, or the server full."""
MAX_DESCRIPTORS = 65_536
"""The soft limit is raised no further: some programs that we start close each descriptor up to it."""
RESERVED_DESCRIPTORS = 32
"""File descriptors reserved for the process itself. A quarter of all is also reserved for upstreams, journals and
tools."""
ACCEPTS_PER_TURN = 8
"""Maximum number of connections accepted in one turn of the event loop, so that running requests are served too."""
ACCEPT_RETRY_S = 1.0
LOG_INTERVAL_S = 60.0


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one, but not above `MAX_DESCRIPTORS`."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; where it fails the old limit holds
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def count_connections(settings: Settings) -> tuple[int, int]:
    """Return the maximum number of connections of the server, in total and per address."""
    total = settings.connections
    with contextlib.suppress(ImportError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            total = max(1, min(total, soft * 3 // 4 - RESERVED_DESCRIPTORS))
    return total, min(total, settings.connections_per_address or max(1, total // 2))


class Connections:
    """The connections of a listening socket. `make` returns the protocol of a new one."""

    def __init__(
        self, listener: socket.socket, make: Callable[[], Any], settings: Settings, context: ssl.SSLContext | None
    ) -> None:
        self._listener, self._make, self._ssl = listener, make, context
        self._handshake_seconds = settings.header_seconds if context is not None else None
        self._total, self._per_address = count_connections(settings)
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._logged: float | None = None

    def start(self) -> None:
        """Accept connections, unless as many are open as may be."""
        if not (self._accepting or self._closed) and self._open < self._total:
            self._accepting = True
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def stop(self) -> None:
        """Stop accepting connections."""
        self._closed = True
        self._pause()
        for task in self._tasks:
            task.cancel()
        if self._retry is not None:
            self._retry.cancel()

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept(self) -> None:
        """Accept connections that wait."""
        for _ in range(ACCEPTS_PER_TURN):
            if self._open >= self._total:
                self._pause()  # further ones wait in the kernel until one ends
                self._warn(f"{self._open} connections are open, which is the limit: further ones wait. See "
                           "`connections` in [serve], and the limit of open files (`ulimit -n`)")  # fmt: skip
                return
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory left: the socket would be ready at once again
                self._pause()
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self.start)
                self._warn(f"no connection can be accepted: {error.strerror or error}")
                return
            address = client_network(peer[0])
            if self._by_address[address] >= self._per_address:
                accepted.close()
                self._warn(f"{address} has {self._per_address} connections open, the limit of one address: further "
                           "ones are closed. For a proxy, raise `connections_per_address` in [serve]")  # fmt: skip
                continue
            accepted.setblocking(False)
            self._open += 1
            self._by_address[address] += 1
            task = self._loop.create_task(self._serve(accepted, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket, address: str) -> None:
        """Hand a connection to its protocol."""
        protocol = self._make()

        def connection_lost(error: Exception | None) -> None:
            del protocol.connection_lost  # what the class has is called next; and no cycle is left to the collector
            self._end(address)
            protocol.connection_lost(error)

        protocol.connection_lost = connection_lost
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._ssl, ssl_handshake_timeout=self._handshake_seconds
            )
        except Exception as error:  # a handshake that failed: the protocol was never connected
            log.debug("a connection from %s failed: %s", address, error)
            self._end(address)

    def _end(self, address: str) -> None:
        """Count the end of a connection."""
        self._open -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]
        self.start()

    def _warn(self, message: str) -> None:
        """Log a warning, at most one per minute: clients that open connections must not fill the disk."""
        now = self._loop.time()
        if self._logged is None or now - self._logged >= LOG_INTERVAL_S:
            self._logged = now
            log.warning(message)


def client_network(host: str) -> str:
    """Return the network that counts as one address: for IPv6 the /64, which usually belongs to one machine.

    >>> client_network("10.0.0.1"), client_network("::ffff:10.0.0.1"), client_network("2001:db8::1:2:3:4%eth0")
    ('10.0.0.1', '10.0.0.1', '2001:db8::/64')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))
