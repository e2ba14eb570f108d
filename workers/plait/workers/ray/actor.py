"""The inside of a Ray actor: one worker, its jobs, its reports in batches.

All reports leave through one waiting call, so that the number of messages follows the engine's steps and not its
tokens. Ray is not imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import os
import struct
import tempfile
from array import array
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plait.core.errors import PlaitError, WorkerError
from plait.core.events import Job
from plait.core.interfaces import CacheUpdate, Progress, Tell, Worker, cache_news, direct
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, as_failure

from .._shared.batch_streams import Reporter, TokenBatch, together

# Checkpoints: token ids that an actor reports while its jobs run, so that another can continue after its death.
#
# Between processes of one machine they go through a pipe. Bytes in a pipe outlive their writer, and writing costs the
# engine's thread one system call, where a message costs half a millisecond.


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


T = TypeVar("T")

SILENCE_LIMIT_S = 60.0
"""Maximum seconds without an answer before an actor counts as dead. For an engine the limit is `PACE` times its slowest
recent answer, at least `LEAST` seconds and at most this."""
PACE, LEAST = 20.0, 10.0
STEP_TIMEOUT_S = 600.0
"""Seconds in which an engine that has requests has to make a step."""


async def hangs(actor: Any, longest: float, by_pace: bool = False) -> str:
    """Ask the actor now and then whether it is there. Return a sentence once it does not answer, or its engine makes no
    step. It is asked twice, because this process may have been suspended itself during the first time.

    `longest`: seconds without an answer; with `by_pace` fewer, by the actor's own pace.
    """
    missed, silence = 0, longest
    took: deque[float] = deque(maxlen=32)
    clock = asyncio.get_running_loop().time
    steps, moved = -1, clock()
    while missed < 2:
        asked = clock()
        answer = asyncio.ensure_future(reply(actor.answers))
        try:  # not `wait_for`, which may swallow a cancel that comes with the answer
            await asyncio.wait([answer], timeout=silence / 2)
            missed = 0 if answer.done() else missed + 1
            if answer.done():
                pulse: Pulse | None = answer.result()
                if pulse is None or not pulse.busy or pulse.steps != steps:
                    steps, moved = pulse.steps if pulse is not None else -1, clock()
        finally:
            answer.cancel()
        if not missed:
            took.append(clock() - asked)
            if by_pace:
                silence = min(longest, max(LEAST, PACE * max(took)))
            if clock() - moved > STEP_TIMEOUT_S:
                return f"its engine has requests and has made no step for {STEP_TIMEOUT_S:g} s"
            await asyncio.sleep(silence / 8)
    return f"it has not answered for {silence:g} s"


async def reply(method: Any, *args: Any) -> Any:
    """Call an actor and await its answer."""
    return await method.remote(*args)


async def answered(answer: Awaitable[T]) -> T:
    """Await a call that was made: Ray's futures are no coroutines, which a task wants."""
    return await answer


def first_line(error: BaseException) -> str:
    """Return an error's class and the first line of its message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


EngineOutputs = tuple[int, Progress | Result | Failure] | TokenBatch | CacheUpdate
"""An attempt and its report, or the new ids of many attempts, or a report on the prefix cache."""

FACTS = ("slots", "models", "cache_tokens", "block", "identity", "reports")
"""Attributes that a worker may know only when it has started."""
CACHE_SECONDS = 0.1
"""Maximum seconds that reports on the prefix cache wait for other reports."""
GATHER_SECONDS = 0.004
"""How long progress waits for more before it goes out."""


class Pulse(NamedTuple):
    """The progress of an engine."""

    busy: bool
    """It has requests."""
    steps: int


def load(spec: str, options: dict[str, Any]) -> Worker:
    """Make the worker of the class `pkg.mod:Class`, without starting it. Raises `WorkerError`."""
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(**options)
    except PlaitError:
        raise
    except Exception as error:
        raise WorkerError(f"the worker {spec!r} cannot be made: {type(error).__name__}: {error}") from error


class ActorHost:
    """An actor that hosts a worker."""

    def __init__(self, spec: str, options: dict[str, Any]) -> None:
        self._worker = load(spec, options)
        self._direct = direct(self._worker)
        self._out: IdsOut | None = None
        self._live: dict[int, Reporter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0
        self._calls: dict[int, tuple[Sequence[Job], Sequence[int]]] = {}
        """Calls of `exchange` that overtook others, by number: an async actor does not take them in order."""
        self._newest = -1
        self._waiter: asyncio.Future[None] | None = None
        """The newest call waits on it."""
        self._news: list[EngineOutputs] = []
        self._latest: dict[int, int] = {}
        """Where in `_news` the unread progress of an attempt stands."""
        self._due = math.inf
        """Time by which the reports must be sent, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._follower: asyncio.Task[None] | None = None

    async def start(self, ids: str | None = None) -> tuple[int, str | None, dict[str, Any]]:
        """Start the worker; return the process id, the error (raised through Ray it would hide its cause), and the
        worker's attributes. Checkpoints go into the pipe at the path `ids`, or out with the news if there is no such
        pipe here."""
        worker: Any = self._worker
        if hasattr(worker, "on_checkpoint"):
            worker.on_checkpoint = self._way_out(ids)
        try:
            await self._worker.start()
        except Exception as error:
            return os.getpid(), str(error) or repr(error), {}
        if (news := cache_news(worker)) is not None:
            self._follower = asyncio.create_task(self._follow_cache(news))
        return os.getpid(), None, {name: getattr(self._worker, name) for name in FACTS if hasattr(self._worker, name)}

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Return the hosted worker's token count of a prompt, or `None` if it cannot count."""
        count = getattr(self._worker, "count_tokens", None)
        return None if count is None else await count(op)

    async def exchange(
        self, number: int, jobs: Sequence[Job] = (), given_up: Sequence[int] = ()
    ) -> list[EngineOutputs]:
        """Start jobs and cancel attempts; then wait for reports, and return all of them.

        Calls are numbered from 0 and take effect in that order, so a cancel never overtakes its job. Only the newest
        call waits for reports; an older one returns nothing as soon as a newer one comes. The caller can thus send a
        job at once, and that call then waits for the next reports. The end of a job is sent at once. Progress waits a
        little for more, since a message costs about as much as an engine step of a few requests."""
        self._calls[number] = (jobs, given_up)
        while (call := self._calls.pop(self._next, None)) is not None:
            self._next += 1
            await self._take(*call)
        # A newer call waits already, and reports go to one call alone.
        if number < self._newest:
            return []
        self._newest = number
        self._wake()
        loop = asyncio.get_running_loop()
        # Reports gather until they are due, or a newer call replaces this one.
        while number == self._newest and loop.time() < self._due:
            self._waiter = loop.create_future()
            await self._waiter
        if number != self._newest:
            return []
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = math.inf, None
        news, self._news = self._news, []
        self._latest.clear()
        return news

    async def _take(self, jobs: Sequence[Job], given_up: Sequence[int]) -> None:
        for job in jobs:
            self._begin(job)
        if given_up and self._direct is None:
            await asyncio.sleep(0)  # a worker knows a job when its task has had a turn
        for attempt in given_up:
            if attempt in self._live:
                with contextlib.suppress(Exception):  # the others are to be cancelled all the same
                    await self._worker.cancel(attempt)

    async def watch(self) -> str:
        """Wait until the worker's health changes for the worse; return why, as far as the worker says."""
        async for healthy in self._worker.health():
            if not healthy:
                break
        return str(getattr(self._worker, "lost", ""))

    async def answers(self) -> Pulse | None:
        """Return the engine's progress; any answer shows that the actor's loop runs."""
        pulse = getattr(self._worker, "pulse", None)
        return None if pulse is None else Pulse(*pulse())

    async def stats(self) -> dict[str, int]:
        """Return the worker's counters, if it has any."""
        stats = getattr(self._worker, "stats", None)
        return stats() if stats is not None else {}

    async def close(self) -> None:
        """Free the worker."""
        await self._worker.close()
        if self._follower is not None:
            self._follower.cancel()
        out, self._out = self._out, None
        if out is not None:
            out.close()

    def _begin(self, job: Job) -> None:
        attempt = job.attempt
        report = self._live[attempt] = Reporter(partial(self._post, attempt), partial(self._end, attempt))
        if self._direct is None:
            task = asyncio.create_task(self._work(job, report))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            self._direct.begin(job, report.push)
        except Exception as error:
            report.push(as_failure(error))

    def _end(self, attempt: int, end: Result | Failure) -> None:
        del self._live[attempt]
        self._post(attempt, end)

    async def _work(self, job: Job, report: Reporter) -> None:
        try:
            async for item in self._worker.run(job):
                report.push(item)
        except Exception as error:
            report.push(as_failure(error))
        report.push(as_failure(WorkerError("the hosted worker ended this job without a result")))

    def _post(self, attempt: int, item: Progress | Result | Failure) -> None:
        # An end frees a slot, which should not stay empty for the sake of fewer messages.
        if not isinstance(item, Progress):
            self._send_in(0.0)
        # Progress of the same attempt that has not been sent yet is merged with this.
        elif (at := self._latest.get(attempt)) is not None and isinstance(last := self._progress(at), Progress):
            self._news[at] = (attempt, together((last, item)))
            return
        else:
            self._latest[attempt] = len(self._news)
            self._send_in(GATHER_SECONDS)
        self._news.append((attempt, item))

    def _progress(self, place: int) -> Progress | Result | Failure | None:
        news = self._news[place]
        return None if isinstance(news, TokenBatch | CacheUpdate) else news[1]

    async def _follow_cache(self, news: AsyncIterator[CacheUpdate]) -> None:
        async for change in news:
            self._news.append(change)
            self._send_in(CACHE_SECONDS)

    def _way_out(self, path: str | None) -> Callable[[TokenBatch], None]:
        """Return the function that the worker's thread calls with checkpoints."""
        if path is not None:
            with contextlib.suppress(OSError):  # the pipe is on another machine
                self._out = IdsOut(path)
                return self._out.write
        loop = asyncio.get_running_loop()

        def post(checkpoint: TokenBatch) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._account, checkpoint)

        return post

    def _account(self, checkpoint: TokenBatch) -> None:
        """Send a checkpoint at once: everything that waits here is lost with the actor."""
        self._news.append(checkpoint)
        self._send_in(0.0)

    def _send_in(self, seconds: float) -> None:
        """Send the reports in at most `seconds`; an earlier appointment stays."""
        loop = asyncio.get_running_loop()
        if (due := loop.time() + seconds) >= self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
        if seconds:
            self._timer = loop.call_at(due, self._send)
        else:
            self._send()

    def _send(self) -> None:
        self._due, self._timer = -math.inf, None
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
