"""Connections: how many, of whom, and that what waits costs nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from typing import Any

import httpx
import pytest

from plait_server import connections
from plait_server.connections import Connections, count_connections, raise_descriptor_limit
from plait_server.settings import Settings

pytestmark = pytest.mark.alone("it counts the connections of the server, and others have some")
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def warnings(monkeypatch: Any, caplog: Any) -> Any:
    monkeypatch.setattr(logging.getLogger("plait"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="plait.serve")
    return lambda: [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def connect(served: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(served.url)
    return await asyncio.open_connection(url.host, url.port)


async def answer(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    """Send a request; return the line of the answer, empty where the connection was closed."""
    reader, writer = connection
    try:
        writer.write(HEALTHZ)
        return await asyncio.wait_for(reader.readline(), 30)
    except ConnectionError:
        return b""


async def answer_once(served: Any) -> bytes:
    """Return the line of an answer on a connection of its own."""
    reader, writer = await connect(served)
    try:
        return await answer((reader, writer))
    finally:
        writer.close()


async def test_connections_send_without_delay(serve: Any) -> None:
    async with serve() as served:
        connection = await connect(served)
        assert (await answer(connection)).startswith(b"HTTP/1.1 200")
        (protocol,) = served.server._uvicorn.server_state.connections
        accepted = protocol.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        connection[1].close()


async def test_an_address_has_no_more_connections_than_its_part(serve: Any, warnings: Any) -> None:
    async with serve(connections=8, connections_per_address=3) as served:
        kept = [await connect(served) for _ in range(3)]
        assert all([(await answer(each)).startswith(b"HTTP/1.1 200") for each in kept])
        for _ in range(5):
            assert await answer_once(served) == b""
        assert [("connections_per_address" in each, "127.0.0.1" in each) for each in warnings()] == [(True, True)]
        kept.pop()[1].close()
        while len(served.server._uvicorn.server_state.connections) > 2:
            await asyncio.sleep(0.005)
        kept.append(await connect(served))
        assert (await answer(kept[-1])).startswith(b"HTTP/1.1 200")
        for _, writer in kept:
            writer.close()


async def test_a_full_server_lets_connections_wait_and_answers_them_later(serve: Any, warnings: Any) -> None:
    async with serve(connections=2, connections_per_address=2) as served:
        idle = [await connect(served) for _ in range(2)]
        accepted = served.server._uvicorn._accepted
        while accepted._open < 2:
            await asyncio.sleep(0.005)
        waiting = [asyncio.ensure_future(answer_once(served)) for _ in range(2)]
        while accepted._accepting:
            await asyncio.sleep(0.005)
        assert len(served.server._uvicorn.server_state.connections) == 2 and not any(each.done() for each in waiting)
        for _, writer in idle:
            writer.close()
        assert all(each.startswith(b"HTTP/1.1 200") for each in await asyncio.gather(*waiting))
        assert len(warnings()) == 1 and "which is the limit" in warnings()[0]


class Exhausted:
    """A listening socket of a process without descriptors."""

    def __init__(self, wakes: socket.socket) -> None:
        self._wakes, self.tries = wakes, 0

    def fileno(self) -> int:
        return self._wakes.fileno()

    def accept(self) -> Any:
        self.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")


async def test_without_descriptors_it_tries_again_later_and_logs_one_line(warnings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "ACCEPT_RETRY_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")  # it is always ready, as a listener is whose connections nobody takes
        listener: Any = Exhausted(ours)
        accepted = Connections(listener, object, Settings(), None)
        accepted.start()
        turns = 0
        while listener.tries < 3:
            await asyncio.sleep(0)
            turns += 1
        accepted.stop()
        assert turns > 3  # the loop has turns in which nothing is tried
    assert warnings() == ["no connection can be accepted: Too many open files"]


def test_the_limit_of_open_files_is_raised_and_some_are_kept() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = connections.MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, connections.MAX_DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(bound, 1024), hard))
        few, _ = count_connections(Settings())
        assert few < 1024 * 3 // 4
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (bound, hard)
        total, each = count_connections(Settings())
        assert total <= bound * 3 // 4 and each == total // 2
        assert count_connections(Settings(connections=10, connections_per_address=10)) == (10, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_an_idle_kept_connection_outlives_the_limit_of_heads(serve: Any) -> None:
    """`header_seconds` is for a head that has begun, or never begins: clients keep connections for longer."""
    async with serve(header_seconds=0.2) as served:
        kept, begun = await connect(served), await connect(served)
        for connection in (kept, begun):
            assert (await answer(connection)).startswith(b"HTTP/1.1 200")
        begun[1].write(HEALTHZ[:5])  # the next head, which never ends
        await asyncio.sleep(1.0)
        kept[1].write(HEALTHZ)
        assert (await asyncio.wait_for(kept[0].readuntil(b"HTTP/1.1 200"), 30)).endswith(b"HTTP/1.1 200")
        assert (await asyncio.wait_for(begun[0].read(), 30)).endswith(b"ok")  # cut off, and no second answer
        for _, writer in (kept, begun):
            writer.close()


async def test_http_0_9_is_refused(serve: Any) -> None:
    async with serve() as served:
        reader, writer = await connect(served)
        writer.write(b"GET /healthz\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert said.startswith(b"HTTP/1.1 400") and not said.endswith(b"ok")
