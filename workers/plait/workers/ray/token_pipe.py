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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from plait.core.events import Job
from plait.core.interfaces import Progress, Tell
from plait.core.result import Failure, Result

from .._shared.batch_streams import Reporter, TokenBatch

REPORT_TOKENS, ALIVE_TOKENS = 16, 256
"""Number of tokens of a job whose ids are kept here before the scheduler gets them: of one whose tokens it counts
(`Job.report`), and of any other. Of the latter it needs them when the actor has died, and then gets them all; an event
for every checkpoint would cost more than all other events."""

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


class ActorJob(Reporter):
    """A job of an actor, with the token ids that the scheduler has not received."""

    __slots__ = ("ids", "is_sent", "job", "limit")

    def __init__(self, job: Job, tell: Tell, end: Callable[[Result | Failure], None] | None = None) -> None:
        super().__init__(tell, end)
        self.job = job
        self.is_sent = False
        """Whether the actor has it."""
        self.limit = REPORT_TOKENS if job.report else ALIVE_TOKENS
        self.ids: list[int] = []

    def report_ids(self) -> None:
        """Report the ids, if there are any."""
        ids, self.ids = tuple(self.ids), []
        self.push(Progress("", len(ids), None, ids))


class TokenBuffer:
    """Keeps the token ids of running jobs that an actor reports, until its death."""

    def __init__(self, live: Mapping[int, ActorJob]) -> None:
        """`live`: the running jobs by attempt."""
        self._live = live
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
        """Keep the ids of a checkpoint."""
        for attempt, ids in checkpoint.parts():
            if (live := self._live.get(attempt)) is not None:
                live.ids += ids
                if len(live.ids) >= live.limit:
                    live.report_ids()

    def report_all(self) -> None:
        """Report all ids that are kept, after the actor's death."""
        for live in list(self._live.values()):
            live.report_ids()

    def close(self) -> None:
        """Close the pipe, if there is one."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            pipe.close()
