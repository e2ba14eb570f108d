"""The tools of `plait mcp`, and how a client receives questions.

A run may ask a person. A client of protocol 2026-07-28 gets an `input_required` result and calls again with the answer;
an older one that can elicit is asked in between; any other gets the advice to use `start`, `status` and `reply`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    RequestParams,
    ToolAnnotations,
)
from pydantic import Field, JsonValue, ValidationError
from typing_extensions import TypedDict

from plait import __version__
from plait.core.errors import PlaitError, UsageError
from plait.core.events import Status
from plait.core.tools.context import Question
from plait.runtime.client.handle import Handle
from plait.runtime.control.verbs import VERBS

from .jobs import MODEL, Jobs, Progress, until_asked


def request_of(question: Question) -> ElicitRequest:
    """Return a question as a form with one field."""
    field: dict[str, Any] = {"type": "string", "title": "Answer"}
    if question.call is not None:
        field = {"type": "boolean", "title": "Allow this call"}
    elif question.choices and all(isinstance(choice, str) for choice in question.choices):
        field["enum"] = list(question.choices)
    schema = {"type": "object", "properties": {"value": field}, "required": ["value"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=question.text, requested_schema=schema))


def value_of(response: object) -> JsonValue:
    """Return the value that the user entered in a form. Raises `ToolError` if the user declined."""
    # A user who declines or closes the form has not answered no: the run gets an error instead of an answer.
    if not isinstance(response, ElicitResult) or response.action != "accept" or response.content is None:
        raise ToolError("the run asked, and was not answered: it is given up")
    value: Any = response.content.get("value")
    return value


# The Tasks extension of MCP (`io.modelcontextprotocol/tasks`, protocol 2026-07-28, SEP-2663).
#
# A client that declares it gets a task at once for `solve` and `run_plan`, asks `tasks/get` how it stands, answers
# questions with `tasks/update`, and gives it up with `tasks/cancel`. A task is a run, and has its id.

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


INSTRUCTIONS = """\
plait runs parallel lines of reasoning and merges them into one answer.
solve: a question by a planner, such as `sample:n=8` (a vote of 8 samples), `tree`, `llmcompiler`, `route`.
vote: the answer on which texts that you already have agree.
run_plan: a plan of your own, as JSON.
start, status, reply, cancel: the same as solve, without waiting."""
MULTI_ROUND = "2026-07-28"


class RunResult(TypedDict, total=False):
    """The answer of a run, or in `error` why it failed."""

    run: str
    status: Status
    answer: JsonValue
    verified: bool | None
    why: str
    error: str | None
    partial: dict[str, JsonValue]
    usage: dict[str, JsonValue]
    total_tokens: int
    critical_path_tokens: int
    seconds: float


class RunState(RunResult, total=False):
    """Where a run stands: its steps and its open questions, or its answer if it has ended."""

    state: Literal["running", "asking", "ended"]
    questions: list[dict[str, JsonValue]]
    steps: list[dict[str, str]]


_READS = ToolAnnotations(read_only_hint=True)


def build(jobs: Jobs) -> MCPServer:
    """Return the server of a list of runs."""
    server = MCPServer(
        "plait",
        title="plait",
        instructions=INSTRUCTIONS,
        version=__version__,
        extensions=[Tasks(jobs)],
        log_level="ERROR",
    )

    @server.tool()
    async def solve(
        question: str, ctx: Context, planner: str = "", n: int = 0, max_tokens: int = 0
    ) -> RunResult | InputRequiredResult:
        """Answer a question by parallel reasoning. `planner` selects the strategy, such as sample:n=8; `n`: number of
        branches; `max_tokens`: token limit of the run."""
        return await _answered(jobs, ctx, lambda: jobs.solve(question, planner, n, max_tokens))

    @server.tool()
    async def run_plan(
        plan: dict[str, Any], ctx: Context, question: str = "", max_tokens: int = 0
    ) -> RunResult | InputRequiredResult:
        """Run a finished plan: {"steps": [{"name": …, "op": {"kind": "think", "prompt": …}}, …], "output": NAME}."""
        return await _answered(jobs, ctx, lambda: jobs.run_plan(plan, question, max_tokens))

    @server.tool(annotations=_READS)
    async def vote(
        samples: list[str], ctx: Context, merge: str = "majority", task: str = ""
    ) -> RunResult | InputRequiredResult:
        """Return the answer on which most of the samples agree. `task` selects how an answer is read from a text."""
        return await _answered(jobs, ctx, lambda: jobs.vote(samples, merge, task))

    @server.tool()
    async def start(question: str, planner: str = "", n: int = 0, max_tokens: int = 0) -> RunState:
        """Start the run of `solve`, and return its id at once."""
        with _tool_errors():
            return _state(await jobs.solve(question, planner, n, max_tokens))

    @server.tool(annotations=_READS)
    async def status(run: str) -> RunState:
        """Return the state of a run: its steps, its questions, and its answer once it has ended."""
        with _tool_errors():
            return _state(jobs.handle(run))

    @server.tool()
    async def reply(run: str, question: str, value: Any) -> RunState:
        """Answer a question of a run, by the ids from `status`. A person decides whether calls are allowed."""
        with _tool_errors():
            handle = jobs.handle(run)
            VERBS["answer"].do(handle, question=question, value=value, by=MODEL)
            return _state(handle)

    @server.tool()
    async def cancel(run: str) -> RunState:
        """Give a run up. Its results so far are kept."""
        with _tool_errors():
            handle = jobs.handle(run)
            VERBS["cancel"].do(handle, reason="cancelled by the client")
            await handle.finished
            return _state(handle)

    return server


@contextlib.contextmanager
def _tool_errors() -> Iterator[None]:
    """Turn plait's errors, which are sentences, into a tool's error."""
    try:
        yield
    except PlaitError as error:
        raise ToolError(str(error)) from None


async def _answered(jobs: Jobs, ctx: Context, begin: Any) -> RunResult | InputRequiredResult:
    """Return the result of a run, or its question. The run is cancelled if the client disconnects."""
    with _tool_errors():
        again = ctx.request_state
        handle: Handle = await begin() if again is None else jobs.handle(again)
        try:
            if again is not None:
                for name, response in (ctx.input_responses or {}).items():
                    handle.answer(name, value_of(response), jobs.person)
            while (asked := await until_asked(handle, _progress(ctx))) is not None:
                # Older clients are asked within the call, which stays open meanwhile.
                if (ctx.protocol_version or "") >= MULTI_ROUND:
                    return InputRequiredResult(input_requests={asked.id: request_of(asked)}, request_state=handle.run)
                handle.answer(asked.id, await _elicited(ctx, asked), jobs.person)
        except BaseException:
            handle.cancel(cause="client-gone")
            raise
        return RunResult(**(await handle).summary())  # pyright: ignore[reportArgumentType]


def _progress(ctx: Context) -> Progress:
    async def report_progress(ended: int, steps: int, last: str) -> None:
        await ctx.report_progress(ended, steps, last)

    return report_progress


async def _elicited(ctx: Context, question: Question) -> JsonValue:
    """Return the answer of a client's user. Raises `ToolError` if the client cannot ask its user."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        raise ToolError(
            f"the run asks: {question.text} This client cannot ask its user: use `start`, then `status` and `reply`."
        )
    request = request_of(question).params
    assert isinstance(request, ElicitRequestFormParams)
    return value_of(
        await ctx.session.elicit_form(request.message, request.requested_schema, ctx.request_context.request_id)
    )


def _state(handle: Handle) -> RunState:
    """Return where a run stands."""
    if handle.finished.done():
        return RunState(state="ended", **handle.finished.result().summary())  # pyright: ignore[reportArgumentType]
    questions = [
        {"id": question.id, "text": question.text, "choices": list(question.choices)} for question in handle.questions
    ]
    steps = [{"step": step.name, "state": step.state} for step in handle.steps]
    return {"run": handle.run, "state": "asking" if questions else "running", "questions": questions, "steps": steps}
