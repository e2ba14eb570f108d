"""Checkpoints: token ids that an actor reports while its jobs run, so that another can continue after its death.

Between processes of one machine they go through a pipe. Bytes in a pipe outlive their writer, and writing costs the
engine's thread one system call, where a message costs half a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

from plait.core.interfaces import Progress

from .._shared.batch_streams import Stream, TokenBatch

TELL_SECONDS = 0.25
"""Seconds that ids are kept here before they are reported to the scheduler; at once if the actor dies. The scheduler
needs them only to resume a step, and an event for every checkpoint would cost more than all other events."""

HEAD = struct.Struct("=II")
"""Before each checkpoint in a pipe: how many attempts it has, and how many ids."""


class IdsOut:
    """The actor's end of the pipe. It belongs to one thread."""

    def __init__(self, path: str) -> None:
        """Open the pipe that a reader has made. Raises `OSError` on another machine, which lacks it."""
        self._file = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        self._unsent = bytearray()

    def write(self, checkpoint: TokenBatch) -> None:
        """Write a checkpoint as far as it fits into the pipe; the rest precedes the next one. The rest is bounded by
        the output of the jobs in flight: a blocked reader sends no new jobs."""
        attempts, counts, ids = checkpoint
        self._unsent += HEAD.pack(len(attempts), len(ids))
        self._unsent += array("q", attempts).tobytes() + array("I", counts).tobytes() + array("I", ids).tobytes()
        try:
            while self._unsent:
                del self._unsent[: os.write(self._file, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # the reader has closed the pipe
            self._unsent.clear()

    def close(self) -> None:
        """Close this end."""
        os.close(self._file)


class IdsIn:
    """The reader's end of a pipe."""

    def __init__(self) -> None:
        """Make the pipe. Raises `OSError`, also where the system has no named pipes."""
        if not hasattr(os, "mkfifo"):
            raise OSError("no named pipes")
        self._folder = tempfile.TemporaryDirectory(prefix="plait-ids-")
        self.path = str(Path(self._folder.name, "ids"))
        try:
            os.mkfifo(self.path, 0o600)
            self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except BaseException:
            self._folder.cleanup()
            raise
        self._unread = bytearray()
        self.ended = False
        """Return whether the writer has closed the pipe and all data has been read."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file

    def read(self) -> Iterator[TokenBatch]:
        """Yield the checkpoints that have been written, whole ones only."""
        try:
            while piece := os.read(self._file, 1 << 16):
                self._unread += piece
            self.ended = True
        except BlockingIOError:
            pass
        while len(self._unread) >= HEAD.size:
            many, tokens = HEAD.unpack_from(self._unread)
            shape = (("q", many), ("I", many), ("I", tokens))
            if len(self._unread) < HEAD.size + sum(array(kind).itemsize * length for kind, length in shape):
                return
            del self._unread[: HEAD.size]
            yield TokenBatch(*(self._array(kind, length) for kind, length in shape))

    def _array(self, kind: str, length: int) -> array[int]:
        values: array[int] = array(kind)
        size = values.itemsize * length
        values.frombytes(self._unread[:size])
        del self._unread[:size]
        return values

    def unlink(self) -> None:
        """Remove the pipe's name, which is no longer needed once both ends are open."""
        self._folder.cleanup()

    def close(self) -> None:
        """Close this end and remove the pipe."""
        os.close(self._file)
        self.unlink()


class TokenBuffer:
    """Token ids of running jobs that an actor has reported but the scheduler has not yet received."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        """`streams`: the stream of each attempt to the scheduler."""
        self._streams = streams
        self._kept: dict[int, list[int]] = {}
        self._due = 0.0
        self._pipe: IdsIn | None = None

    def open(self) -> str | None:
        """Make a pipe for a new actor; return its path, or nothing where there are no such pipes."""
        self.close()
        with contextlib.suppress(OSError):
            self._pipe = IdsIn()
            asyncio.get_running_loop().add_reader(self._pipe.fileno(), self.read)
            return self._pipe.path
        return None

    def opened(self) -> None:
        """Remove the pipe's path: the actor has opened it, or cannot."""
        if self._pipe is not None:
            self._pipe.unlink()

    def read(self) -> None:
        """Keep what has been written into the pipe."""
        if self._pipe is None:
            return
        for checkpoint in self._pipe.read():
            self.keep(checkpoint)
        if self._pipe.ended:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())

    def keep(self, checkpoint: TokenBatch) -> None:
        """Keep the ids of a checkpoint; tell the scheduler of them now and then."""
        for attempt, ids in checkpoint.parts():
            if attempt in self._streams:
                self._kept.setdefault(attempt, []).extend(ids)
        now = asyncio.get_running_loop().time()
        if now >= self._due:
            self._due = now + TELL_SECONDS
            self.tell()

    def tell(self) -> None:
        """Tell the scheduler of all ids that are kept."""
        for attempt, ids in self._kept.items():
            if (stream := self._streams.get(attempt)) is not None:
                stream.push(Progress("", len(ids), None, tuple(ids)))
        self._kept.clear()

    def forget(self, attempt: int) -> None:
        """Drop what is kept of a job that has ended."""
        self._kept.pop(attempt, None)

    def close(self) -> None:
        """Close the pipe, if there is one."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            pipe.close()
