"""The runs that the server's tools start: their news and their questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from plait.core.errors import UsageError
from plait.core.ops import Join, Plugin, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.rights import ANY_HOST, Rights
from plait.core.states import State
from plait.core.tools.context import Answerer, Question
from plait.core.tools.tool import tool
from plait.runtime.client.answer import ApprovalRequested, StepEvent
from plait.runtime.client.client import AsyncOrchestrator
from plait.runtime.client.handle import Handle
from plait.runtime.plugins.spec import untrusted

from .. import outside

Progress = Callable[[int, int, str], Awaitable[None]]
"""Takes how many steps have ended, how many there are, and which ended last."""
KEPT = 1000
"""Maximum number of ended runs in memory."""
SAMPLES = 1000
"""Maximum number of texts of a vote."""
MODEL = Answerer(name="MCP client", approves=False)
"""Who calls the tool `reply`: mostly a model, which may have asked for the call itself."""
_RIGHTS = Rights(image_hosts=(ANY_HOST,))
"""The rights of clients: those of this program, without images of this machine or its network."""


class Jobs:
    """The runs of one server, by id. Names from clients are data: they import only plugins that the operator allowed.

    Args:
        orchestrator: runs them. Its questions wait (`on_ask="later"`).
        tokens: token limit per run, which a client cannot raise; `None`: the orchestrator's own limit.
        local: clients are programs of this machine, so the answer of their user counts as the operator's answer.
    """

    def __init__(self, orchestrator: AsyncOrchestrator, tokens: int | None = None, local: bool = True) -> None:
        self._orchestrator, self._tokens = orchestrator, tokens
        self.person = Answerer(name="user of an MCP client", approves=local)
        """Who answers a form that a client has shown."""
        self._handles: dict[str, Handle] = {}

    async def solve(self, question: str, planner: str = "", n: int = 0, max_tokens: int = 0) -> Handle:
        """Start a run; options that are not given are the server's. Raises `PlaitError` for an invalid request."""
        if not question.strip():
            raise UsageError("the question is empty: say what is asked")
        return await self._submit(question, planner=planner or None, n=n or None, tokens=self._least(max_tokens))

    async def run_plan(self, plan: dict[str, Any], question: str = "", max_tokens: int = 0) -> Handle:
        """Start a run of a finished plan. Raises `PlaitError` for an invalid plan."""
        return await self._submit(question, plan=Plan(**plan), tokens=self._least(max_tokens))

    async def vote(self, samples: list[str], merge: str = "majority", task: str = "") -> Handle:
        """Start a vote over texts that are there already: steps that return them, and a join."""
        if not 2 <= len(samples) <= SAMPLES:
            raise UsageError(f"a vote is between 2 and {SAMPLES:,} texts, and these are {len(samples):,}")

        @tool
        def sample(index: int) -> str:
            """Return one of the texts."""
            return samples[index]

        names = tuple(f"sample-{number}" for number in range(1, len(samples) + 1))
        # Samples are the values of calls, so that a vote over them is a run like any other, with a journal.
        steps = [Step(name=name, op=ToolCall(tool="sample", args={"index": at})) for at, name in enumerate(names)]
        join = Step(name="vote", op=Join(merge=Plugin.of(merge)), needs=names)
        plan = Plan(steps=(*steps, join), output="vote")
        return await self._submit("", plan=plan, tools=[sample], task=task or None)

    def handle(self, run: str) -> Handle:
        """Return a run of this server, running or ended. Raises `UsageError` for another's."""
        handle = self._handles.get(run)
        if handle is None:
            raise UsageError(f"there is no run {run[:80]!r} here: `start` returns the ids")
        return handle

    async def _submit(self, question: str, plan: Plan | None = None, tools: Any = None, **fields: Any) -> Handle:
        request = Request.of({"text": question, **fields})
        with untrusted():
            outside.check(request, plan, _RIGHTS, self._orchestrator.plugins)
            request = request.model_copy(update={"rights": _RIGHTS})
            handle = await self._orchestrator.submit(request, plan=plan, tools=tools)
        self._handles[handle.run] = handle
        for run in [run for run, earlier in self._handles.items() if earlier.finished.done()][:-KEPT]:
            del self._handles[run]
        return handle

    def _least(self, tokens: int) -> int | None:
        if tokens < 0:
            raise UsageError(f"max_tokens must be at least 1, got {tokens}")
        return min((limit for limit in (tokens or None, self._tokens) if limit is not None), default=None)


async def until_asked(handle: Handle, progress: Progress | None) -> Question | None:
    """Wait until a run has ended or asks something. Returns the question, or `None` at the end. Cancelling the waiting
    call does not cancel the run."""
    steps: dict[str, bool] = {}
    async for news in handle.follow():
        if isinstance(news, ApprovalRequested):
            return news.question
        if isinstance(news, StepEvent):
            record = news.record
            ended = State(record.state).ended
            is_reported = not ended or steps.get(record.step, False)
            steps[record.step] = ended
            if progress is not None and not is_reported:
                await progress(sum(steps.values()), len(steps), f"{record.name} {record.state}")
    await asyncio.shield(handle.finished)
    return None
