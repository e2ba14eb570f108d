"""A synchronous façade over the async client. A background thread runs its event loop.

With its own loop, the façade also works where a loop is already running, as in a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from pydantic import JsonValue

from ...core.errors import UsageError
from ...core.plan import Plan
from ...core.request import Request
from ..journal.location import Location
from ..journal.resume import OnUncertainSideEffect
from .answer import Answer, Mode, RunEvent
from .client import AsyncOrchestrator, Handle
from .loop_thread import LoopThread
from .request_preparation import ToolLike

T = TypeVar("T")


class Orchestrator:
    """Plans, runs and answers requests; every method blocks until it is done.

    Arguments as for `AsyncOrchestrator`. Use the orchestrator in a `with` statement or call `close()`; an open one is
    closed at the end of the process. Ctrl-C during `run` cancels the run, then raises `KeyboardInterrupt`.

        with Orchestrator(model="countdown") as plait:
            answer = plait.run("3 5 7 11 -> 24", task="countdown", planner="threads")

    The same with scripted replies in place of a model:

    >>> from plait.workers.scripted import Reply, Scripted
    >>> with Orchestrator(workers=[Scripted([Reply(text="answer: 4")])], journal="off") as plait:
    ...     answer = plait.run("What is 2 + 2?", planner="sample", n=3)
    ...     kinds = [news.kind for news in plait.stream("And 3 + 1?", modes=["answer"])]
    >>> answer.answer, answer.status, answer.why
    ('4', 'done', '3 of 3 votes, margin 3')
    >>> [step.name for step in answer.plan.steps], [row.state for row in answer.trace]
    (['sample-1', 'sample-2', 'sample-3', 'vote'], ['done', 'done', 'done', 'done'])
    >>> answer.usage.completion, kinds
    (6, ['answer'])
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._inner = AsyncOrchestrator(model, **options)
        self._thread = LoopThread(self._inner.close)
        self._end = weakref.finalize(self, self._thread.forget)

    def __enter__(self) -> Self:
        try:
            self._do(self._inner.start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all runs and free all resources; waiting callers get the answers in their current state. May be called
        twice, and from any thread except that of the orchestrator's own async tools, which raises `UsageError`."""
        self._thread.close()
        self._end.detach()

    def run(self, request: str | Request = "", *, plan: Plan | None = None, **fields: Any) -> Answer:
        """Run one request to its end; arguments as for `AsyncOrchestrator.submit`."""
        return self._await(self._submitted(request, fields, plan))

    def map(self, texts: list[str], **fields: Any) -> list[Answer]:
        """Run many requests concurrently and return their answers in order."""
        handles: list[Handle] = []
        given: dict[str, Any] = {
            name: list(cast("Iterator[Any]", value)) if isinstance(value, Iterator) else value  # read for each text
            for name, value in fields.items()
        }
        try:
            for text in texts:
                handles.append(self._submitted(text, given))
        except BaseException:
            for handle in handles:  # the caller gets no handles to cancel
                self._thread.call(handle.cancel)
            raise
        return [self._await(handle, handles) for handle in handles]

    def resume(
        self,
        run: str,
        *,
        on_uncertain_side_effect: OnUncertainSideEffect | None = None,
        tools: Iterable[ToolLike] = (),
        path: str | Location | None = None,
    ) -> Answer:
        """Resume a run whose process ended early; arguments as for `AsyncOrchestrator.resume`."""
        return self._do(
            self._inner.resume(run, on_uncertain_side_effect=on_uncertain_side_effect, tools=tools, path=path)
        )

    def answer(self, question: str, value: JsonValue) -> None:
        """Answer a question that came as an event of `stream`, by its id."""
        self._do(self._answered(question, value))

    async def _answered(self, question: str, value: JsonValue) -> None:
        self._inner.answer(question, value)

    def feedback(self, run: str, right: float) -> bool:
        """Rate the answer of a run; arguments as for `AsyncOrchestrator.lessons.feedback`."""
        return self._do(self._inner.lessons.feedback(run, right))

    def stream(
        self,
        request: str | Request = "",
        *,
        plan: Plan | None = None,
        modes: Collection[Mode] | None = None,
        **fields: Any,
    ) -> Iterator[RunEvent]:
        """Run one request and yield its events (only of the kinds `modes`, if given), the answer last. Leaving the
        iteration early cancels the run."""
        handle = self._do(self._inner.submit(request, plan=plan, watch=True if modes is None else modes, **fields))
        news = handle.news(modes)
        try:
            while True:
                try:
                    yield self._do(anext(news))
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(UsageError):  # it was closed meanwhile, which cancels the run
                self._do(news.aclose())

    def _submitted(self, request: str | Request, fields: Mapping[str, Any], plan: Plan | None = None) -> Handle:
        """Start a run without a receiver of its questions."""
        given = (request, fields, plan, False)
        return self._do(self._inner._submit(*given, answerable=False))  # pyright: ignore[reportPrivateUsage]

    def _await(self, handle: Handle, beside: Sequence[Handle] = ()) -> Answer:
        """Wait for a run. Ctrl-C cancels this run and concurrent runs."""
        try:
            return self._do(_wait(handle))
        except KeyboardInterrupt:
            for waiting in (handle, *beside):
                self._thread.call(waiting.cancel)
            with contextlib.suppress(Exception):
                self._do(asyncio.wait_for(_wait(handle), 15))
            raise

    def _do(self, work: Coroutine[Any, Any, T] | Any) -> T:
        return self._thread.do(work)


async def _wait(handle: Handle) -> Answer:
    return await handle
