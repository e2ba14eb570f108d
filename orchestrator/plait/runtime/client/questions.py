"""Questions of tools to a person: receivers, answers, and the journal's record of both.

After a resume, an answered question is not asked again, unless its text or choices differ. The caller decides how to
ask people, on a terminal or elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import JsonValue

from ...core.errors import Unanswered, UsageError
from ...core.tools.context import OPERATOR, Answerer, GivenAnswer, Question
from ..journal.inbox import take
from ..journal.writer import Recorder

OnAsk = Callable[[Question], JsonValue | Awaitable[JsonValue]]
"""Asks a person a question and returns the answer. A synchronous function runs on its own thread."""
LATER = "later"
"""Value of `on_ask`: a question waits without a time limit for an answer by a handle or from another process."""
_EVERY = 0.25
"""Seconds between two looks for answers from another process."""

OnQuestion = Callable[[Question], None]
Answered = Mapping[str, tuple[JsonValue, GivenAnswer]]
"""Questions of earlier sessions in the journal and their answers, by the question's id."""


_Said = tuple[JsonValue, Answerer]
_ASKED = Answerer.model_construct({"name"}, name="on_ask")


@dataclass(slots=True)
class _Open:
    """A run whose tools may ask."""

    recorder: Recorder | None
    answers: Answered
    """Answers of earlier sessions."""
    on_question: OnQuestion | None
    """Receives each question, so that it can be answered from outside."""
    tenant: str = ""
    """The tenant that submitted the run."""
    waiting: dict[str, tuple[Question, asyncio.Future[_Said]]] = field(
        default_factory=dict[str, tuple[Question, "asyncio.Future[_Said]"]]
    )


class QuestionQueue:
    """Asks the questions of all active runs."""

    def __init__(self, on_ask: OnAsk | Literal["later"] | None = None) -> None:
        if on_ask is not None and on_ask != LATER and not callable(on_ask):
            raise UsageError(f"on_ask={on_ask!r:.80} answers no questions: give a function of one, or 'later'")
        self.on_ask: OnAsk | None = None if on_ask == LATER else on_ask
        self._waits = on_ask == LATER
        self._runs: dict[str, _Open] = {}

    def begin(
        self,
        run: str,
        recorder: Recorder | None,
        answers: Answered | None = None,
        on_question: OnQuestion | None = None,
        tenant: str = "",
    ) -> None:
        """Let a run's tools ask questions. Without `on_question` and `on_ask` every question fails. `tenant`: the
        tenant that submitted the run."""
        self._runs[run] = _Open(recorder, answers or {}, on_question, tenant)

    def end(self, run: str) -> None:
        """Forget an ended run."""
        opened = self._runs.pop(run, None)
        for _, future in opened.waiting.values() if opened else ():
            future.cancel()

    async def ask(self, question: Question) -> JsonValue:
        """Put a question and return the answer. Raises `Unanswered`."""
        opened = self._runs.get(question.run)
        if opened is None:
            raise Unanswered(f"{question.text!r}: its run is over")
        written = question.model_dump(mode="json")
        before, given = opened.answers.get(question.id, (None, None))
        # Compare the whole question: its text may differ, since the tool's arguments may differ.
        if given is not None and before == written and given.counts(question, opened.tenant):
            return question.check(given.value)
        if opened.recorder is not None:
            opened.recorder.note(question.run, question.id, "asked", written)
        began = time.monotonic()
        value, by = await self._answered(question, opened)
        if opened.recorder is not None:
            waited = round(time.monotonic() - began, 3)
            given = GivenAnswer(value=value, by=by, at=time.time(), call=question.call, waited=waited)
            if not opened.recorder.note(question.run, question.id, "answered", given.model_dump(mode="json")):
                raise Unanswered(f"{question.text!r}: the answer came after the journal of its run had been lost")
        return value

    def answer(self, question: str, value: JsonValue, by: Answerer = OPERATOR) -> None:
        """Answer an open question, by its id. Raises `UsageError` if the question is not open, `Unanswered` for an
        answer outside its choices, and `NotAllowed` for an unauthorised caller; the question then stays open."""
        for opened in self._runs.values():
            asked, future = opened.waiting.get(question, (None, None))
            if asked is not None and future is not None and not future.done():
                by.check(asked, opened.tenant)
                future.set_result((asked.check(value), by))
                return
        there = [key for opened in self._runs.values() for key in opened.waiting]
        known = f"open are {', '.join(there)}" if there else "none is open"
        raise UsageError(f"there is no open question {question!r}: {known}")

    def open(self, run: str) -> tuple[Question, ...]:
        """Return a run's questions that wait for an external answer."""
        opened = self._runs.get(run)
        waiting = opened.waiting.values() if opened is not None else ()
        return tuple(question for question, future in waiting if not future.done())

    async def _answered(self, question: Question, opened: _Open) -> _Said:
        if self.on_ask is not None:
            try:
                return question.check(await _called(self.on_ask, question)), _ASKED
            except Unanswered:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise Unanswered(f"{question.text!r} could not be put to anybody ({reason})") from error
        if opened.on_question is None and not self._waits:
            raise Unanswered(
                f"{question.text!r}: no one can answer; pass on_ask=…, or submit the run and answer by its handle"
            )
        future: asyncio.Future[_Said] = asyncio.get_running_loop().create_future()
        opened.waiting[question.id] = (question, future)
        path = opened.recorder.path(question.run) if opened.recorder is not None else None
        try:
            if opened.on_question is not None:
                opened.on_question(question)
            while path is not None and not future.done():
                reply = await asyncio.to_thread(take, path, question, opened.tenant)
                if reply is not None and not future.done():
                    return reply
                await asyncio.wait([future], timeout=_EVERY)
            return await future
        finally:
            opened.waiting.pop(question.id, None)


async def _called(on_ask: OnAsk, question: Question) -> JsonValue:
    if inspect.iscoroutinefunction(on_ask) or inspect.iscoroutinefunction(getattr(on_ask, "__call__", None)):  # noqa: B004
        return await cast("Awaitable[JsonValue]", on_ask(question))
    value = await _on_thread(lambda: on_ask(question))
    return await value if inspect.isawaitable(value) else cast("JsonValue", value)


async def _on_thread(work: Callable[[], object]) -> object:
    """Run a function on a daemon thread, because a thread that waits for a person must not block the process's exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()

    def settle(value: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def run() -> None:
        value: object = None
        problem: BaseException | None = None
        try:
            value = work()
        except Exception as error:
            problem = error
        except BaseException as error:
            problem = Unanswered(f"the one who was asked gave up ({type(error).__name__})")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, name="plait-ask", daemon=True).start()
    return await future
