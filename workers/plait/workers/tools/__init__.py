"""Runs tools, which are typed Python functions: async ones on the event loop, sync ones on threads, so none blocks
it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import difflib
import functools
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from plait.core.errors import Denied, ToolError, ToolSchemaError, Unanswered, WorkerLost
from plait.core.events import Job
from plait.core.flow import ask_a_person
from plait.core.interfaces import Tell
from plait.core.ops import Kind, ToolCall
from plait.core.result import NOTHING, Failure, Result, as_failure, frames_of
from plait.core.tools.context import Question, ToolContext
from plait.core.tools.tool import Tool, ToolSpec, tool

from .._shared.batch_streams import CallbackWorker
from .daemon_threads import ThreadPool
from .mcp import McpServer
from .retrieve import searcher
from .tool_loader import AnyTool, NotJson, load_tools, to_json

__all__ = ["Tools", "load_tools"]

log = logging.getLogger("plait.workers.tools")
_SHOWN = 400
"""Characters of a call's arguments in the question whether it is allowed."""

DAY = 86_400.0
"""Seconds."""
_LISTED = 20
"""Maximum names of tools in a message about an unknown tool."""


class Tools(CallbackWorker):
    """Serves the calls of a plan with a set of tools.

    Options:
        tools: tools, or functions to make tools of.
        file: a FILE.py whose `@tool` functions are added.
        mcp: MCP servers whose tools are added at `start`: URLs, command lines, or `McpServer`s.
        slots: calls at the same time; each call of a sync tool takes a thread.
        grace: seconds that an async tool has to clean up after a cancel or timeout, before its call ends.
        lease: seconds after which a call is given up whose tool has no timeout of its own. While it waits for a
            person's answer they do not pass.
        name: name of the worker.

    A sync tool cannot be stopped. When it is cancelled or times out, its thread is abandoned: the call ends at once,
    the thread continues in the background, takes no slot, and does not keep the process alive.

    Raises `ToolSchemaError` for two tools of one name or a function that cannot be a tool, `ConfigError` for a bad
    file.
    """

    serves: tuple[Kind, ...] = ("call",)

    def __init__(
        self,
        tools: Iterable[AnyTool | Callable[..., Any]] = (),
        *,
        file: str | Path | None = None,
        mcp: Iterable[str | McpServer] = (),
        slots: int = 512,
        grace: float = 1.0,
        lease: float = DAY,
        name: str = "tools",
    ) -> None:
        self.name = name
        self.lease = lease
        self.slots = slots
        self.grace = grace
        self.abandoned = 0
        """Abandoned calls that still ran."""
        self.on_ask: Callable[[Question], Awaitable[JsonValue]] | None = None
        """Puts the questions of tools to a person; without it they are not answered."""
        self._tools: dict[str, AnyTool] = {}
        self.specs: tuple[ToolSpec, ...] = ()
        """Descriptions of the tools, for planners; cached, since each run gets all of them."""
        self._of_runs: dict[str, dict[str, AnyTool]] = {}
        """By run: the tools that it alone may call."""
        self.add((*tools, *(load_tools(file) if file is not None else ())))
        self._hidden: dict[str, AnyTool] = {hidden.name: hidden for hidden in (ask_a_person, searcher(self._known))}
        """Tools that are hidden from planners."""
        self._servers = [server if isinstance(server, McpServer) else McpServer(server) for server in mcp]
        self._running: dict[int, _Running] = {}
        self._leases: asyncio.TimerHandle | None = None
        self._threads = ThreadPool(f"plait-{name}")
        self._closed = asyncio.Event()

    def add(self, tools: Iterable[AnyTool | Callable[..., Any]]) -> None:
        """Add tools, or functions that become tools. If one of them is refused, none is added. A tool that is there
        already stays as it is.

        Raises `ToolSchemaError` for another tool of the same name or a function that cannot be a tool.
        """
        self._tools = self._with(tools)
        self.specs = tuple(known.spec for known in self._tools.values())

    def lend(self, run: str, tools: Iterable[AnyTool | Callable[..., Any]]) -> Callable[[], None]:
        """Let one run call more tools than the others may; return a function that takes them away again. Raises what
        `add` raises."""
        own = {name: one for name, one in self._with(tools).items() if name not in self._tools}
        if not own or self._of_runs.setdefault(run, own) is not own:
            return lambda: None
        return lambda: cast("None", self._of_runs.pop(run, None))

    def specs_with(self, tools: Iterable[AnyTool | Callable[..., Any]]) -> tuple[ToolSpec, ...]:
        """Return the descriptions of tools for the planner of a run that has tools of its own. Raises what `add`
        raises."""
        return tuple(one.spec for one in self._with(tools).values())

    def _with(self, tools: Iterable[AnyTool | Callable[..., Any]]) -> dict[str, AnyTool]:
        known = dict(self._tools)
        for one in tools:
            if not callable(one) and not isinstance(one, Tool):
                raise ToolSchemaError(f"{one!r:.80} is no tool: give functions, such as tools=[search]")
            made = cast("AnyTool", one if isinstance(one, Tool) else tool(one))
            if known.setdefault(made.name, made).fn is not made.fn:
                raise ToolSchemaError(f"two tools are named {made.name!r}: give one another name with @tool(name=…)")
        return known

    async def start(self) -> None:
        """Connect to the MCP servers, if there are any. Raises `WorkerError` for one that cannot be used, and
        `ToolSchemaError` for two tools of one name."""
        self._closed, self._leases = asyncio.Event(), None
        try:
            for server in self._servers:
                self.add(await server.open())
        except BaseException:
            await self._disconnect()
            raise

    def begin(self, job: Job, tell: Tell) -> None:
        """Call the tool of `job.op`, and report its result or failure."""
        op = job.op
        prepared = self._prepare(op, job.run)
        if isinstance(prepared, Failure):
            tell(prepared)
            return
        assert op.kind == "call"
        the_tool, kwargs = prepared
        loop, attempt = asyncio.get_running_loop(), job.attempt

        def end(outcome: Result | Failure) -> None:
            del self._running[attempt]
            tell(outcome)

        running = self._running[attempt] = _Running(the_tool, loop, end)
        if self._asks(op, the_tool):
            running.task = loop.create_task(self._when_allowed(running, job))
            return
        self._begin(running, job, kwargs)

    def _begin(self, running: _Running, job: Job, kwargs: dict[str, object]) -> None:
        the_tool, loop = running.tool, running.loop
        if the_tool.context is not None:
            kwargs[the_tool.context] = _Context(job, running, self.on_ask)
        work = functools.partial(the_tool.fn, **kwargs) if kwargs else the_tool.fn
        if the_tool.is_async:
            call = running.follow(work)
            if the_tool.suspends:
                running.task = loop.create_task(call)
            else:  # it ends here; in a context of its own, as in a task
                try:  # noqa: SIM105  (`suppress` takes four calls)
                    contextvars.copy_context().run(call.send, None)
                except StopIteration:
                    pass
        else:
            self._on_thread(running, work)
        running.timed_out = self._timed_out
        if the_tool.timeout is not None:
            running.arm(the_tool.timeout)
        elif self.lease is not None and not running.over:
            running.due = loop.time() + self.lease
            if self._leases is None:
                self._leases = loop.call_at(running.due, self._end_leases, loop)

    def _end_leases(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the calls whose lease has expired. One timer is for all: most calls end long before."""
        now, self._leases = loop.time(), None
        for running in list(self._running.values()):
            if running.due is not None and running.due <= now:
                running.due = None
                self._timed_out(running)
        later = [running.due for running in self._running.values() if running.due is not None]
        if later:
            self._leases = loop.call_at(min(later), self._end_leases, loop)

    def _asks(self, op: ToolCall, the_tool: AnyTool) -> bool:
        """Return whether a person must approve. A plan's mark counts only if it is stricter: plans are not trusted."""
        return bool(op.approve or the_tool.approve)

    async def allowed(self, job: Job) -> ToolCall | Failure:
        """Ask a person whether a call may be made; return it with the arguments that they want, or why not. The clock
        of its timeout does not run meanwhile."""
        call = cast("ToolCall", job.op)
        shown = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in call.args.items())
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        asked: dict[str, JsonValue] = {"tool": call.tool, "args": call.args}
        question = Question(
            id=f"{job.step}?approve",
            run=job.run,
            step=job.step,
            text=f"Allow {call.tool}({shown})?",
            choices=("yes", "no"),
            call=asked,
        )
        try:
            if self.on_ask is None:
                raise Unanswered(f"no one can answer {question.text!r} here: run the tool through an orchestrator")
            verdict = question.check(await self.on_ask(question))
        except ToolError as error:
            return as_failure(error)
        match verdict:
            case {"approved": True, **rest}:
                args = rest.get("args", call.args)
                return call.model_copy(update={"args": args, "approve": None})
            case {"reason": str() as reason}:
                return as_failure(Denied(f"a person did not allow {call.tool}({shown}): {reason}"))
            case _:
                return as_failure(Denied(f"a person did not allow {call.tool}({shown})"))

    async def _when_allowed(self, running: _Running, job: Job) -> None:
        """Make a call when a person has allowed it."""
        call = await self.allowed(job)
        running.task = None
        prepared = call if isinstance(call, Failure) else self._prepare(call, job.run)
        if isinstance(prepared, Failure):
            running.end(prepared)
        else:
            self._begin(running, job, prepared[1])

    async def cancel(self, attempt: int) -> None:
        """Stop a call: an async tool by `CancelledError`, a sync one by giving up its thread."""
        if running := self._running.get(attempt):
            self._stop(running, Result(finish="cancelled"))

    async def health(self) -> AsyncIterator[bool]:
        """Ready until closed."""
        yield True
        await self._closed.wait()

    async def close(self) -> None:
        """Cancel what runs and end the threads that are not stuck."""
        self._closed.set()
        if self._leases is not None:
            self._leases.cancel()
            self._leases = None
        tasks = [running.task for running in self._running.values() if running.task]
        for running in list(self._running.values()):
            self._stop(running, Result(finish="cancelled"))
        if tasks:
            await asyncio.wait(tasks, timeout=self.grace)
        self._threads.close()
        await self._disconnect()

    async def _disconnect(self) -> None:
        for server in self._servers:
            await server.close()

    def _known(self, run: str) -> dict[str, AnyTool]:
        """Return the tools that a run may call."""
        own = self._of_runs.get(run)
        return self._tools if own is None else self._tools | own

    def _prepare(self, call: object, run: str) -> tuple[AnyTool, dict[str, object]] | Failure:
        if not isinstance(call, ToolCall):
            return as_failure(ToolError(f"worker {self.name!r} runs tools, not a model call"))
        if self._closed.is_set():
            return as_failure(WorkerLost(f"worker {self.name!r} is closed"))
        known = self._known(run)
        the_tool = known.get(call.tool) or self._hidden.get(call.tool)
        if the_tool is None:
            near = difflib.get_close_matches(call.tool, known, n=2)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            there = ", ".join(list(known)[:_LISTED]) or "none: pass tools=[…] or --tools FILE.py"
            there += f", and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
            return as_failure(ToolError(f"there is no tool {call.tool!r}{hint} (there are: {there})"))
        try:
            return the_tool, the_tool.bind(call.args)
        except ToolError as error:
            return as_failure(error)
        except Exception as error:  # a validator of the user's own
            return _raised(the_tool, error)

    def _on_thread(self, running: _Running, work: Callable[[], object]) -> None:
        try:
            self._threads.submit(functools.partial(_run_here, running, contextvars.copy_context(), work))
        except RuntimeError as error:
            message = f"tool {running.tool.name!r} got no thread ({error}; {self.abandoned} calls given up before)"
            running.end(Failure(kind="ToolError", message=f"{message}: give slow tools a timeout, or make them async"))

    def _timed_out(self, running: _Running) -> None:
        name, seconds = running.tool.name, running.tool.timeout
        if seconds is None:
            message = f"tool {name!r} gave no answer within its lease of {self.lease:g} s: give it a @tool(timeout=…)"
        else:
            message = f"tool {name!r} gave no answer within its timeout of {seconds:g} s: raise @tool(timeout=…)"
        if running.task is None:
            message += "; its thread cannot be stopped and runs on in the background, so make the tool async if you can"
        self._stop(running, as_failure(ToolError(message)))

    def _stop(self, running: _Running, outcome: Result | Failure) -> None:
        if running.stopping is not None or running.over:
            return
        running.stopping = outcome
        if running.task is None:
            self._abandon(running)
        elif not running.started:
            running.task.cancel()
            running.end(outcome)
        else:
            running.task.cancel()
            running.release_timer()
            running.timer = running.loop.call_later(self.grace, self._abandon, running)

    def _abandon(self, running: _Running) -> None:
        """End a call whose tool ignores its cancellation, and log that."""
        if running.over or running.stopping is None:
            return
        self.abandoned += 1
        what = "ignores its cancellation" if running.task else "runs on in a thread, which cannot be stopped"
        log.warning("tool %r is given up but %s", running.tool.name, what)
        if isinstance(running.stopping, Result):
            running.stopping = running.stopping.model_copy(update={"why": f"tool {running.tool.name!r} {what}"})
        running.end(running.stopping)


class _Running:
    """One running call. All methods run on the loop."""

    __slots__ = ("_tell", "due", "loop", "over", "started", "stopping", "task", "timed_out", "timer", "tool")

    def __init__(
        self, tool: AnyTool, loop: asyncio.AbstractEventLoop, tell: Callable[[Result | Failure], None]
    ) -> None:
        self.tool = tool
        self.loop = loop
        self.over = False
        """Whether its end was reported, or its caller no longer waits."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.due: float | None = None
        """When its lease is over; it has no timer of its own then."""
        self.timed_out: Callable[[_Running], None] | None = None
        self.stopping: Result | Failure | None = None
        """The outcome of the call once it was cancelled or has timed out."""
        self.started = False
        self._tell = tell

    async def follow(self, start: Callable[[], Awaitable[object]]) -> None:
        """Run an awaitable to its end in a task of its own. Whatever it raises becomes a failure: `SystemExit` would
        otherwise stop the loop."""
        self.started = True
        try:
            outcome = _result(self.tool, await start())
        except BaseException as error:
            outcome = _raised(self.tool, error)
        self.task = None
        self.end(outcome)

    def end(self, outcome: Result | Failure) -> None:
        """Settle the call. A cancelled tool that still returned keeps its value."""
        if self.over:
            return
        if self.stopping is not None and not (isinstance(self.stopping, Result) and isinstance(outcome, Result)):
            outcome = self.stopping
        self.release()
        self._tell(outcome)

    def thread_ended(self, outcome: Result | Failure | Awaitable[object]) -> None:
        """Take the outcome of a thread; runs on the loop. A sync function may return an awaitable."""
        if isinstance(outcome, Result | Failure):
            self.end(outcome)
        elif self.over:
            if inspect.iscoroutine(outcome):
                outcome.close()
        else:
            self.task = self.loop.create_task(self.follow(lambda: outcome))

    def arm(self, seconds: float) -> None:
        """Call `timed_out` unless the call ends within `seconds`."""
        if self.timed_out is not None and not self.over:
            self.timer = self.loop.call_later(seconds, self.timed_out, self)

    def hold_timer(self) -> Callable[[], None]:
        """Stop the clock of the call's timeout; return a function that starts it again."""
        due = self.due if self.timer is None else self.timer.when()
        if due is None or self.stopping is not None:
            return lambda: None
        left, self.due = due - self.loop.time(), None
        self.release_timer()
        return lambda: None if self.over or self.stopping is not None else self.arm(left)

    def release_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def release(self) -> None:
        """Stop timer and task when the caller no longer waits."""
        self.over = True
        if self.timer is not None:
            self.release_timer()
        if self.task is not None:
            self.task.cancel()


class _Context(ToolContext):
    """The context of one call. While its tool waits for a person, its timeout is paused."""

    def __init__(self, job: Job, running: _Running, on_ask: Callable[[Question], Awaitable[JsonValue]] | None) -> None:
        super().__init__(job.run, job.step, job.attempt, job.tenant)
        self._running = running
        self._on_ask = on_ask

    async def _put(self, question: Question) -> JsonValue:
        if self._on_ask is None:
            return await super()._put(question)
        go_on = self._running.hold_timer()
        try:
            return await self._on_ask(question)
        finally:
            go_on()

    def _put_and_wait(self, question: Question) -> JsonValue:
        return asyncio.run_coroutine_threadsafe(self._put(question), self._running.loop).result()


def _run_here(running: _Running, context: contextvars.Context, work: Callable[[], object]) -> None:
    outcome: Result | Failure | Awaitable[object]
    try:
        value = context.run(work)
        outcome = value if inspect.isawaitable(value) else _result(running.tool, value)
    except BaseException as error:
        outcome = _raised(running.tool, error)
    with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
        running.loop.call_soon_threadsafe(running.thread_ended, outcome)


def _raised(the_tool: AnyTool, error: BaseException) -> Failure:
    try:
        reason = str(error)
        retryable = bool(getattr(error, "retryable", False)) and not the_tool.once
    except Exception as worse:  # an exception whose own methods raise
        reason, retryable = f"(its message cannot be read: {type(worse).__name__})", False
    message = f"tool {the_tool.name!r} raised {type(error).__name__}" + (f": {reason}" if reason else "")
    log.debug("%s", message, exc_info=error)
    return Failure(kind="ToolError", message=message, retryable=retryable, frames=frames_of(error))


def _result(the_tool: AnyTool, value: object) -> Result | Failure:
    if value is None:
        return NOTHING
    try:
        return Result(value=to_json(value))
    except NotJson as error:
        return Failure(kind="ToolError", message=f"tool {the_tool.name!r} returned {error}")
