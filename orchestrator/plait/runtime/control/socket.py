"""The socket of a process, by which others on this host ask it: one JSON object a line, there and back.

A connection asks one thing: `{"do": "show", "run": "…"}`. The answer is any number of lines, the last of them
`{"end": true}` or `{"error": "…"}`. Sockets are in a folder that only their owner can enter. Both sides check the
owner of the other process: a folder that another user made first, or a socket that was put there, is not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pwd
import socket
import stat
import struct
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

from ...core.errors import PlaitError, UsageError
from ...core.tools.context import Answerer
from .verbs import Control, Holder

log = logging.getLogger("plait.control")

_LINE = 1 << 20


def folder() -> Path:
    """Return the folder of the sockets: `plait` in `XDG_RUNTIME_DIR`, else one of the user's own in the temporary
    folder."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(given) / "plait" if given.startswith("/") else Path(tempfile.gettempdir()) / f"plait-{os.getuid()}"


def is_private(home: Path) -> bool:
    """Return whether a path is a folder, no link, that belongs to this user and that only this user can enter."""
    try:
        status = home.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def owner(link: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket, as the kernel says it."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user


@contextlib.asynccontextmanager
async def opened(control: Control) -> AsyncGenerator[Path | None]:
    """Listen while the context lasts. Where that cannot be, it is logged, and nothing listens."""
    path: Path | None = None
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[Any]] = set()

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await _serve(control, reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    try:
        home = folder()
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(home):
            raise OSError(f"{home} is another's, or open to others")
        socket = home / f"{os.getpid()}-{id(control):x}.sock"
        server = await asyncio.start_unix_server(met, socket, limit=_LINE)
        socket.chmod(0o600)
        path = socket
    except OSError as error:
        log.info("`plait runs` will not find this process: %s", error)
    try:
        yield path
    finally:
        if server is not None:
            for listening in server.sockets:  # accept no more connections
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(4):  # turns of the loop in which one who has just come gets a task
                await asyncio.sleep(0)
            server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if path is not None:
            path.unlink(missing_ok=True)


class ControlSocket:
    """The socket of what holds runs, for as long as it is open; none without a `holder`."""

    def __init__(self, holder: Holder | None) -> None:
        self._control = None if holder is None else Control(holder)
        self._open = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Listen."""
        if self._control is not None:
            await self._open.enter_async_context(opened(self._control))

    async def close(self) -> None:
        """Listen no longer."""
        await self._open.aclose()


async def _serve(control: Control, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one question; a client that disconnects is dropped."""
    user = owner(writer.get_extra_info("socket"))
    if user not in (os.getuid(), 0):
        return
    try:
        line = await asyncio.wait_for(reader.readline(), 10)
        asked = json.loads(line)
        if not isinstance(asked, dict):
            raise UsageError('ask with one JSON object on a line: {"do": "list"}')
    except (TimeoutError, ValueError, RecursionError, UsageError) as error:
        writer.write(_line({"error": f"not understood: {error or type(error).__name__}"}))
        await writer.drain()
        return
    gone = asyncio.ensure_future(reader.read())
    rows = control.do(cast("dict[str, Any]", asked), Answerer(name=f"user {_name(user)}"))
    try:
        while True:
            step = asyncio.ensure_future(anext(rows))
            await asyncio.wait((step, gone), return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
                return
            writer.write(_line(step.result()))
            await writer.drain()
    except StopAsyncIteration:
        writer.write(_line({"end": True}))
    except PlaitError as error:
        writer.write(_line({"error": str(error)}))
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await rows.aclose()
    await writer.drain()


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=True, default=str).encode() + b"\n"


class Peer:
    """A process that listens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, do: str, timeout: float | None = 10.0, **fields: Any) -> Iterator[dict[str, Any]]:
        """Ask, and yield the rows of the answer. Raises `UsageError` for a refusal, `OSError` for a closed process."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(timeout)
            _connect(link, self.path)
            link.sendall(_line({"do": do, **fields}))
            with link.makefile("rb") as lines:
                for line in lines:
                    row = json.loads(line)
                    if "error" in row and len(row) == 1:
                        raise UsageError(row["error"])
                    if row == {"end": True}:
                        return
                    yield row
        raise OSError("the process has ended")


def _connect(link: socket.socket, path: Path) -> None:
    """Connect to a process of this user's. Raises `OSError` for one that is another's."""
    link.connect(str(path))
    if owner(link) != os.getuid():
        raise OSError(f"{path} is the socket of another user")


def peers() -> list[Peer]:
    """Return the processes of this user that listen; sockets that were left behind are removed. A folder that is not
    this user's alone has none."""
    home, peers = folder(), list[Peer]()
    if not is_private(home):
        if home.exists():
            log.warning("%s is not this user's alone: no process is looked for there", home)
        return peers
    for path in sorted(home.glob("*.sock")):
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(2)
                _connect(link, path)
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue
        else:
            peers.append(Peer(path))
    return peers
