"""Runs the tools of a file in Ray actors, beside the tools that run in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.core.errors import WorkerError, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ToolCall
from plait.core.result import Failure, Result, as_failure

from .ray import Quarantine, RayWorker
from .tools import DAY, AnyTool, McpServer, Tools, load_tools

__all__ = ["ToolActors"]


class AllowedTools(Tools):
    """The tools of an actor: who sends it a call has asked whether it may be made."""

    def _asks(self, op: ToolCall, the_tool: AnyTool) -> bool:
        return False


class ToolActors(Tools):
    """Serves calls as `tools` does; those of the tools of `file` in Ray actors, where heavy ones do not slow the
    scheduler down and one that crashes takes no more than its actor with it.

    Options: those of `tools`, and
        actors: how many Ray actors.
        num_cpus: CPUs that each reserves; 0 for tools that mostly wait.
        start_timeout: seconds for the cluster to find room for an actor and for that to load the file.

    The actor with the fewest calls gets the next. Calls whose actor died fail as lost ones: they are made again on
    another, unless their tool has side effects. The file has to be at the same path on every node. Functions that are
    given, MCP servers' tools, and tools that take a `Context` (whose questions only this process can put to a person)
    run here.

    Raises what `tools` does; `start` raises `WorkerError` for a cluster without room.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool | Callable[..., Any]] = (),
        *,
        file: str | Path,
        mcp: Iterable[str | McpServer] = (),
        actors: int = 1,
        num_cpus: float = 1,
        start_timeout: float = 180.0,
        slots: int = 64,
        grace: float = 1.0,
        lease: float = DAY,
        name: str = "tools",
    ) -> None:
        loaded = load_tools(file)
        super().__init__((*tools, *loaded), mcp=mcp, slots=slots, grace=grace, lease=lease, name=name)
        self._afar = frozenset(tool.name for tool in loaded if tool.context is None)
        options: dict[str, Any] = {"file": str(Path(file).absolute()), "slots": slots, "grace": grace, "lease": lease}
        room: dict[str, Any] = {"num_cpus": num_cpus, "count": actors, "start_timeout": start_timeout, "like": self}
        room["quarantine"] = Quarantine()
        self._actors = [
            RayWorker("plait.workers.tool_actors:AllowedTools", options, name=f"{name}-{index}", **room)
            for index in range(actors)
        ]
        self._left = actors
        """Actors that are there or coming back."""
        self._calls: dict[int, RayWorker] = {}
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        """Calls for which no actor is ready: whether one may be now."""
        self._followers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the actors side by side, and connect to the MCP servers. Raises `WorkerError` and `ToolSchemaError`."""
        if self._followers:
            return
        starts = [
            asyncio.ensure_future(start) for start in (super().start(), *(actor.start() for actor in self._actors))
        ]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        self._left = len(self._actors)
        self._followers = [asyncio.create_task(self._follow(actor)) for actor in self._actors]

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Call the tool of `job.op`, in an actor if it belongs to the file."""
        if not isinstance(job.op, ToolCall) or job.op.tool not in self._afar:
            async for item in super().run(job):
                yield item
            return
        the_tool = self._tools.get(job.op.tool)
        if the_tool is not None and self._asks(job.op, the_tool):
            call = await self.allowed(job)
            if not isinstance(call, ToolCall):
                yield call
                return
            job = replace(job, op=call)
        actor = await self._free(job.attempt)
        if not isinstance(actor, RayWorker):
            yield actor
            return
        self._calls[job.attempt] = actor
        try:
            async for item in actor.run(job):
                yield item
        finally:
            del self._calls[job.attempt]

    async def cancel(self, attempt: int) -> None:
        """Stop a call, wherever it runs."""
        if (waiting := self._waiting.get(attempt)) is not None:
            if not waiting.done():
                waiting.set_result(False)
        elif (actor := self._calls.get(attempt)) is not None:
            await actor.cancel(attempt)
        else:
            await super().cancel(attempt)

    async def close(self) -> None:
        """Stop what runs, and end the actors."""
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
        self._closed.set()
        self._look_again()
        await asyncio.gather(super().close(), *(actor.close() for actor in self._actors))

    async def _free(self, attempt: int) -> RayWorker | Result | Failure:
        """Return the actor with the fewest calls, once there is one, or what the call ends in without one."""
        while not self._closed.is_set():
            ready = [actor for actor in self._actors if actor.ready]
            if ready:
                live = list(self._calls.values())
                return min(ready, key=live.count)
            if not self._left:
                return as_failure(WorkerError(f"the {len(self._actors)} actors of {self.name!r} have died too often"))
            waiting = self._waiting[attempt] = asyncio.get_running_loop().create_future()
            try:
                if not await waiting:
                    return Result(finish="cancelled")
            finally:
                del self._waiting[attempt]
        return as_failure(WorkerLost(f"worker {self.name!r} is closed"))

    async def _follow(self, actor: RayWorker) -> None:
        """Wake calls that wait for an actor whenever one returns or is lost for good."""
        async for _ in actor.health():
            self._look_again()
        self._left -= 1
        self._look_again()

    def _look_again(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(True)
