"""A flow as part of the caller's program, not as a planner: `async with orchestrator.flow() as ctx`.

The run's planner only waits for the program to end. The program's context makes steps as a planner's context does, but
waits with asyncio: between two steps the program may run any code. Another process therefore cannot resume such a run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar, TypeVar, cast

from pydantic import PrivateAttr

from ...core.events import Event
from ...core.flow import Answerable, Context, Flow
from ...core.step_handles import FlowPlace, Group, Promise, StepHandle
from ..driver.flows import RunningFlow
from .answer import Answer
from .handle import Handle

T = TypeVar("T")


class ProgramFlow(Flow):
    """The planner of a run that a program drives; it waits for the program's end."""

    gone: ClassVar[str] = "the program that drove this run (`orchestrator.flow`) has ended: run it again"
    _started: asyncio.Future[RunningFlow] = PrivateAttr()
    _end: Promise[Answerable] = PrivateAttr()

    def started_future(self) -> asyncio.Future[RunningFlow]:
        """Return the future of what runs it."""
        self._started = asyncio.get_running_loop().create_future()
        return self._started

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Wait for the program's end."""
        running = cast("RunningFlow", ctx.host)
        running.patient = True
        self._end = Promise(running)
        self._started.set_result(running)
        return await self._end

    def ended(self, value: Answerable) -> None:
        """Say that the program has ended."""
        self._end.settle(value)


class _Part:
    """A coroutine of a program, as names and steps belong to it."""

    def __init__(self, place: FlowPlace) -> None:
        self.place = place
        self.made: list[StepHandle[object]] = []


_PART: contextvars.ContextVar[_Part | None] = contextvars.ContextVar("plait-flow-part", default=None)


class _Task(Promise[Any]):
    """A coroutine that runs as an asyncio task."""

    def __init__(self, host: _LiveHost, coroutine: Coroutine[object, None, Any], part: _Part) -> None:
        super().__init__(host)
        self.part, self.place = part, part.place
        self.task = asyncio.ensure_future(self._run(coroutine))

    async def _run(self, coroutine: Coroutine[object, None, Any]) -> None:
        _PART.set(self.part)
        try:
            self.settle(await coroutine)
        except BaseException as error:
            self.settle(error=error)
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise


class _LiveHost:
    """Runs a program's steps: new steps start when the program next yields to the event loop."""

    def __init__(self, running: RunningFlow, post: Callable[[Event], None], now: Callable[[], float]) -> None:
        self._running, self._post, self._now = running, post, now
        self._began = now()
        self._due = False

    def place(self) -> FlowPlace:
        part = _PART.get()
        return part.place if part is not None else self._running.place()

    def add_step(self, handle: StepHandle[object], group: Group | None) -> None:
        part = _PART.get()
        self._running.add_step(handle, group, self.place())
        if part is not None:
            part.made.append(handle)
        self._later()

    def give_up(self, handle: StepHandle[object], reason: str) -> None:
        self._running.give_up(handle, reason)
        self._later()

    def keep(self, value: object) -> str:
        return self._running.keep(value)

    def spawn(self, coroutine: Coroutine[object, None, T]) -> Promise[T]:
        return _Task(self, coroutine, _Part(self._running.inner(self.place())))

    def abandon(self, task: Promise[object], reason: str) -> None:
        if isinstance(task, _Task):
            task.task.cancel()
            for step in task.part.made:
                if not step.ended:
                    self.give_up(step, reason)

    def wait(self, awaited: Promise[object]) -> Generator[object, None, None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        awaited.when_ended(lambda: None if future.done() else future.set_result(None))
        yield from future

    def note_passed(self) -> None:
        """Nothing is counted: the program's time is its own."""

    def read(self, awaited: Promise[object]) -> None:
        self._running.read(awaited, self.place())

    def now(self) -> float:
        return self._now() - self._began

    def flush(self) -> None:
        """Send new steps to the machine."""
        self._due = False
        for event in self._running.take_made_steps(self._now()):
            self._post(event)

    def _later(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)


class LiveContext(Context):
    """The interface with which a program makes its steps; see `Context`."""

    value: Answerable = None
    """The run's output: a step, or a value. Set it before the end."""
    result: Answer | None = None
    """The run's answer, after the end."""
    run: str = ""
    """Id of the run."""


class LiveFlow:
    """`async with` of a program's run. Leaving the context ends the run; an exception cancels the run."""

    def __init__(self, submit: Callable[[ProgramFlow], Coroutine[Any, Any, Handle]]) -> None:
        self._submit = submit
        self._program = ProgramFlow()

    async def __aenter__(self) -> LiveContext:
        started = self._program.started_future()
        self._handle = await self._submit(self._program)
        ended = asyncio.ensure_future(self._wait())
        await asyncio.wait([started, ended], return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            (await ended).unwrap()
        ended.cancel()
        self._host = _LiveHost(started.result(), self._handle.post, self._handle.now)
        self._context = LiveContext(self._host, started.result().brief, ProgramFlow.__name__)
        self._context.run = self._handle.run
        return self._context

    async def _wait(self) -> Answer:
        return await asyncio.shield(self._handle.finished)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._handle.cancel(f"the program that drove it raised {type(error).__name__}", cause="broken")
        else:
            self._program.ended(self._context.value)
            self._host.flush()
        self._context.result = await self._handle
