"""The Tasks extension of MCP (`io.modelcontextprotocol/tasks`, protocol 2026-07-28, SEP-2663).

A client that declares it gets a task at once for `solve` and `run_plan`, asks `tasks/get` how it stands, answers
questions with `tasks/update`, and gives it up with `tasks/cancel`. A task is a run, and has its id.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolRequestParams, RequestParams
from pydantic import Field, ValidationError

from plait.core.errors import PlaitError, UsageError
from plait.runtime.client.handle import Handle

from .forms import request_of
from .jobs import Jobs

IDENTIFIER = "io.modelcontextprotocol/tasks"
VERSIONS = frozenset({"2026-07-28"})
POLL_MS = 500


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """Answers a task's questions, by their keys."""

    input_responses: dict[str, dict[str, Any]] = Field(alias="inputResponses")


class Tasks(Extension):
    """Runs as tasks."""

    identifier = IDENTIFIER

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._began: dict[str, str] = {}

    def methods(self) -> Sequence[MethodBinding]:
        """Return the three methods of the extension."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Start a task in the place of a call that takes long, for a client that knows of tasks."""
        capabilities = ctx.session.client_capabilities
        # A client that knows no tasks waits for the answer within its call.
        if capabilities is None or IDENTIFIER not in (capabilities.extensions or {}):
            return await call_next(ctx)
        if ctx.protocol_version not in VERSIONS:  # some declare the extension to whomever they meet
            return await call_next(ctx)
        given = params.arguments or {}
        try:
            match params.name:
                case "solve":
                    handle = await self._jobs.solve(**given)
                case "run_plan":
                    handle = await self._jobs.run_plan(**given)
                case _:
                    return await call_next(ctx)
        except (PlaitError, TypeError, AttributeError, ValidationError):
            return await call_next(ctx)  # the tool itself reports invalid arguments
        self._began[handle.run] = _now()
        return {"resultType": "task", **self._task(handle)}

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        return {"resultType": "complete", **self._task(self._handle(params))}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        handle = self._handle(params)
        for question, response in params.input_responses.items():
            content = response.get("content")
            if response.get("action") != "accept" or not isinstance(content, dict):
                handle.cancel("its question was declined")
                break
            try:
                handle.answer(question, content.get("value"), self._jobs.person)
            except PlaitError as error:
                raise MCPError(INVALID_PARAMS, str(error)) from None
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        self._handle(params).cancel("cancelled by the client")
        return {"resultType": "complete"}

    def _handle(self, params: TaskParams) -> Handle:
        try:
            return self._jobs.handle(params.task_id)
        except UsageError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None

    def _task(self, handle: Handle) -> dict[str, Any]:
        """Return a task as the extension's schema has it."""
        task: dict[str, Any] = {
            "taskId": handle.run,
            "createdAt": self._began.get(handle.run, _now()),
            "lastUpdatedAt": _now(),
            "ttlMs": None,
            "pollIntervalMs": POLL_MS,
        }
        if handle.finished.done():
            answer = handle.finished.result()
            summary = answer.summary()
            content = [{"type": "text", "text": str(answer.answer if answer.answer is not None else answer.why)}]
            result = {"content": content, "structuredContent": summary, "isError": answer.status == "failed"}
            status = "cancelled" if answer.status == "cancelled" else "completed"
            return {**task, "status": status, **({"result": result} if status == "completed" else {})}
        if handle.questions:
            asked = {
                question.id: request_of(question).model_dump(by_alias=True, exclude_none=True)
                for question in handle.questions
            }
            return {**task, "status": "input_required", "inputRequests": asked}
        ended = sum(step.state in ("done", "failed", "cancelled") for step in handle.steps)
        return {**task, "status": "working", "statusMessage": f"{ended} of {len(handle.steps)} steps have ended"}


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
