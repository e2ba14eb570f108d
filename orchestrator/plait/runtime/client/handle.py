"""The handle of one active run: its events, its questions, and its answer.

It converts the driver's events to `RunEvent`s, and the records of a finished run to an answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from types import NoneType
from typing import Any, Literal, TypeGuard, cast

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.causes import Cause
from ...core.errors import RAISED, TaskError, UsageError
from ...core.events import Action, Event, Finish as RunEnd, Limited, Paused, Progressed, Pruned, Submitted
from ...core.plan import TURN, Plan
from ...core.provenance import Provenance
from ...core.record import StepRecord
from ...core.request import Request
from ...core.result import Result, as_failure
from ...core.task import Task
from ...core.tools.calls import loads
from ...core.tools.context import OPERATOR, Answerer, Question
from ...core.values import split_reasoning
from ...machine import Machine, Node, Run
from ..driver.driver import Driver
from ..driver.event_pump import OFFLOAD_PLAN_STEPS
from ..driver.garbage_collection import uncollected
from ..runlog import RunDelta, RunLog, RunRecord, step_record, step_records
from .answer import Answer, ApprovalRequested, Mode, RunEnded, RunEvent, StepEvent, TextDelta, report, typed
from .questions import QuestionQueue

_FROM_THE_BEGINNING = ("prompt_tokens", "total_tokens", "cost", "turns")
"""Limits that a run can only have from its start, since usage is counted only for an existing limit."""
_AT_ANY_TIME = tuple(name for name in Budget.model_fields if name not in (*_FROM_THE_BEGINNING, "strict"))

MAX_UNREAD_EVENTS = 4096
"""Maximum number of unread events while further steps start."""

OFFLOAD_OUTPUT_CHARS = 32 << 10
"""Minimum characters of an output that is parsed on a thread instead of the event loop."""


class NewsQueue:
    """Unread events of a follower of a run. Consecutive text deltas of a step are merged, unless they have
    log-probabilities."""

    def __init__(self) -> None:
        self._unread: deque[RunEvent | BaseException] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._unread)

    def put(self, item: RunEvent | BaseException) -> None:
        """Add an event, or the end of all events."""
        self._unread.append(item)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def get(self) -> RunEvent | BaseException:
        """Wait for the next event and return it. For one reader."""
        unread = self._unread
        while not unread:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        item = unread.popleft()
        if not unread or not _is_plain_text(item):
            return item
        pieces = [item]
        while unread and _is_plain_text(then := unread[0]) and (then.step, then.attempt) == (item.step, item.attempt):
            pieces.append(then)
            unread.popleft()
        if len(pieces) == 1:
            return item
        joined = {name: "".join([getattr(piece, name) for piece in pieces]) for name in ("text", "reasoning")}
        return pieces[-1].model_copy(update=joined)


def _is_plain_text(item: RunEvent | BaseException) -> TypeGuard[TextDelta]:
    return isinstance(item, TextDelta) and item.logprob is None


class Standing:
    """The use of an active run's limits of tokens and cost."""

    def __init__(self, run: Run) -> None:
        assert run.account is not None
        self._account = run.account

    def limit(self, name: Literal["tokens", "cost"]) -> float | None:
        """Return the limit in force."""
        budget = self._account.budget
        return budget.tokens if name == "tokens" else budget.cost

    def committed(self, name: Literal["tokens", "cost"]) -> float:
        """Return the use of a limit and the reservations of running attempts."""
        account = self._account
        return account.tokens + account.held_back.tokens if name == "tokens" else account.cost + account.held_back.cost


class Handle:
    """One active run. Await it for the answer."""

    def __init__(
        self,
        driver: Driver,
        event: Submitted,
        task: Task,
        watch: bool | Collection[Mode],
        *,
        asker: QuestionQueue,
        future: asyncio.Future[tuple[RunEnd, Run | None]] | None = None,
        nodes: Sequence[Node] = (),
        began: float | None = None,
        ended: float | None = None,
        provenance: Callable[[], Provenance] | None = None,
        on_settled: Callable[[str], object] | None = None,
        known: bool = True,
    ) -> None:
        self.run: str = event.run
        """Id of the run."""
        self._driver = driver
        self._task = task
        self._record = RunRecord(event.run, event.at if began is None else began, event.request, event.plan)
        self._record.seen = len(nodes)
        self._ended = ended
        self._provenance = provenance
        self._on_settled = on_settled
        self.request: Request = event.request
        """What was asked."""
        self.paused: bool = False
        """Whether nothing more of it is started."""
        self._limits: Budget | None = None
        """The limits that were asked for last."""
        self._form = event.request.output
        self._asker = asker
        self._queues: list[NewsQueue] = []
        """Of those who follow the run."""
        self._news: NewsQueue | None = NewsQueue() if watch else None
        if self._news is not None:
            self._queues.append(self._news)
            driver.watch(self.run, self._watch)
            if watch is True or "text" in cast("Collection[Mode]", watch):
                driver.stream(self.run)
            for node in nodes:  # of a resumed run: current values
                self._news.put(StepEvent(at=0.0, record=step_record(node, event.at)))
        self._read_by: Literal["", "news", "wait"] = ""
        """`news`: a reader follows the events and no caller awaits the answer, so the run waits for the reader."""
        self._held = False
        """Whether the run is paused until more events are read."""
        self._waiters: list[asyncio.Future[Answer]] = []
        """Of those who await the handle."""
        self._finish: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        (future or driver.submit(event, known)).add_done_callback(self._on_end)
        if self._news is not None:
            self._finish.add_done_callback(partial(self._over, self._news))

    @cached_property
    def _log(self) -> RunLog:
        log = RunLog([self.run], keep="steps")
        log.runs[self.run] = self._record
        return log

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Answer:
        self._read_by = "wait"
        self._keep_pace()
        if self._finish.done():
            return self._finish.result()
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    @property
    def began(self) -> float:
        """Time of submission on the run's clock."""
        return self._record.began

    @property
    def plan(self) -> Plan:
        """The first plan, as the planner made it."""
        assert self._record.plan is not None
        return self._record.plan

    @property
    def finished(self) -> asyncio.Future[Answer]:
        """The future of the answer. Cancelling a waiter of this future, unlike one of the handle, does not cancel the
        run."""
        return self._finish

    def post(self, event: Event) -> None:
        """Send an event of the run to the machine, for programs that drive the run."""
        self._driver.post(event)

    def now(self) -> float:
        """Return the time on the run's clock, in seconds."""
        return self._driver.now()

    def cancel(self, reason: str = "", *, cause: Cause = "user") -> None:
        """Cancel the run; awaiting it then returns the partial answer. `reason`: a message for the answer's readers."""
        self._driver.cancel(self.run, reason, cause)

    def prune(self, step: str, reason: str = "") -> None:
        """Cancel one step, by its id; the run continues without it, as when a policy stops a branch."""
        self.post(Pruned(at=self.now(), step=step, reason=reason))

    def pause(self) -> None:
        """Pause the run until `resume`. Running steps continue, and time budgets keep counting."""
        self._pause(True)
        self.paused = True

    def _pause(self, on: bool) -> None:
        self.post(Paused(at=self.now(), run=self.run, on=on))

    def resume(self) -> None:
        """Start steps again after `pause`."""
        self.paused = False
        if not self._held:
            self._pause(False)

    @property
    def budget(self) -> Budget:
        """The limits that it has now."""
        run = self._driver.machine.runs.get(self.run)
        there = run.account.budget if run is not None and run.account is not None else self.request.budget
        return self._limits or there

    @property
    def standing(self) -> Standing | None:
        """Usage against the run's limits; `None` before the start, without limits, and after the end."""
        run = self._driver.machine.runs.get(self.run)
        return None if run is None or run.account is None else Standing(run)

    def limit(self, **limits: float | str | None) -> None:
        """Change limits of the run's budget while it runs: `width=4`, `tokens=None` (no limit). Earlier usage counts. A
        smaller width stops no attempt: fewer attempts start. If usage already exceeds a limit of tokens or cost,
        running steps are cut. A rejected step stays rejected. Raises `FieldError` for an unknown limit, `UsageError`
        for a limit whose usage the run has not counted from its start.
        """
        before = self.budget
        budget = Budget(**{**before.model_dump(), **limits})  # pyright: ignore[reportArgumentType]
        for name in limits:
            if name in _FROM_THE_BEGINNING and getattr(before, name) is None is not limits[name]:
                raise UsageError(f"run {self.run} has not counted its {name} from the start, so it cannot be limited "
                                 f"now: limit {' or '.join(_AT_ANY_TIME)}")  # fmt: skip
        if budget.strict != before.strict:
            raise UsageError("strict cannot be changed while a run runs: it says how attempts reserve tokens")
        self._limits = budget
        self.post(Limited(at=self.now(), run=self.run, budget=budget))

    @property
    def questions(self) -> tuple[Question, ...]:
        """Open questions of this run's tools."""
        return self._asker.open(self.run)

    def answer(self, question: str, value: JsonValue, by: Answerer = OPERATOR) -> None:
        """Answer a question, by its id. Raises `UsageError` for one that is not open, `Unanswered` for an answer that
        is not one of its choices, `NotAllowed` for a caller who may not answer it."""
        self._asker.answer(question, value, by)

    def asked(self, question: Question) -> None:
        """Add a question to the events."""
        news = ApprovalRequested(at=self._driver.now() - self.began, question=question)
        for queue in self._queues:
            queue.put(news)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Current records of the run's steps; empty after the end, when the answer has the records."""
        run = self._driver.machine.runs.get(self.run)
        return () if run is None else step_records(run, self.began)

    @property
    def tokens(self) -> int:
        """Tokens generated so far, as reported by workers."""
        live = sum(
            attempt.generated for attempt in self._driver.machine.attempts.values() if attempt.node.run.id == self.run
        )
        return live + sum(step.tokens for step in self.steps)

    async def follow(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the current state of the run's steps and open questions, then the run's events, the answer last. Any
        number of readers may follow; leaving the iteration does not cancel the run."""
        queue = NewsQueue()
        steps, at = self.steps, self._driver.now() - self.began
        for record in steps:
            queue.put(_step_event(at, record, self._driver.machine))
        for question in self.questions:
            queue.put(ApprovalRequested(at=at, question=question))
        if not self._queues:
            self._record.seen = len(steps)
            self._driver.watch(self.run, self._watch)
        self._queues.append(queue)
        over = partial(self._over, queue)
        self._finish.add_done_callback(over)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, RunEnded):
                    return
        finally:
            self._queues.remove(queue)
            if not self._queues:
                self._driver.unwatch(self.run, self._watch)
            self._finish.remove_done_callback(over)

    async def news(self, modes: Collection[Mode] | None = None) -> AsyncGenerator[RunEvent, None]:
        """Yield the run's events, the answer last; with `modes` only those kinds. Only for a handle made with
        `watch=True`, and once.

        Backpressure: with more than `MAX_UNREAD_EVENTS` unread events the run starts no further step until half of them
        are read, unless a caller awaits its answer as well. A slow reader thus costs bounded memory.
        """
        if self._news is None:
            raise UsageError("submit with watch=True to follow a run's news")
        if not self._read_by:
            self._read_by = "news"
        try:
            while True:
                item = await self._news.get()
                self._keep_pace()
                if isinstance(item, BaseException):
                    raise item
                if modes is None or item.kind in modes:
                    yield item
                if isinstance(item, RunEnded):
                    return
        finally:
            if not self._finish.done():
                self.cancel()

    def _on_end(self, future: asyncio.Future[tuple[RunEnd, Run | None]]) -> None:
        """Read the answer of an ended run; on a thread for a long output."""
        self._asker.end(self.run)
        if future.cancelled() or future.exception() is not None:
            self._settle(future.result)
            return
        record = self._record
        finish, record.records = future.result()
        record.finish, nodes = finish, () if record.records is None else record.records.nodes
        record.now = self._driver.now() if self._ended is None else self._ended
        if len(nodes) < OFFLOAD_PLAN_STEPS and not _is_long(finish.result):
            self._settle(self._read)
            return
        reading = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, self._read_large)
        reading.add_done_callback(lambda _: self._settle(reading.result))

    def _settle(self, read: Callable[[], Any]) -> None:
        """Set the answer, or the error that reading it raises."""
        try:
            answer: Answer = read()
        except (Exception, asyncio.CancelledError) as error:
            for future in (self._finish, *self._waiters):
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if self._waiters and not self._finish.cancelled():
                self._finish.exception()  # who awaits the handle gets it
        else:
            for future in (self._finish, *self._waiters):
                if not future.done():
                    future.set_result(answer)
        finally:
            self._driver.ended(self.run)
            if self._on_settled is not None:
                self._on_settled(self.run)

    def _read_large(self) -> Answer:
        with uncollected():
            return self._read()

    def _read(self) -> Answer:
        record = self._record
        try:
            answer = read_answer(record, self._task, self._provenance)
        finally:
            self._driver.reported(self.run, record.records)
            record.records = None
        return answer if self._form is None else typed(answer, self._form)

    def _over(self, queue: NewsQueue, finish: asyncio.Future[Answer]) -> None:
        """Send a follower the end of the run, or the error that broke the run."""
        error = asyncio.CancelledError() if finish.cancelled() else finish.exception()
        queue.put(RunEnded(at=self._record.seconds, answer=finish.result()) if error is None else error)

    def _watch(self, event: Event, machine: Machine, actions: list[Action]) -> None:
        if isinstance(event, Progressed) and not actions and not machine.moves:  # a token: nothing else came of it
            text = text_of(event, machine, self.began)
            heard: Sequence[RunEvent] = () if text is None else (text,)
        else:
            heard = news_of(self._log.take(event, machine, actions), event, self.began)
        for news in heard:
            for queue in self._queues:
                queue.put(news)
        self._keep_pace()

    def _keep_pace(self) -> None:
        """Backpressure: pause the run while many of its events are unread, and resume it once they are read."""
        unread = len(self._news) if self._news is not None and self._read_by == "news" else 0
        if self._held:
            if unread <= MAX_UNREAD_EVENTS // 2:
                self._held = False
                if not self.paused and not self._finish.done():
                    self._pause(False)
        elif unread > MAX_UNREAD_EVENTS and not self._finish.done():
            self._held = True
            self._pause(True)


def _is_long(result: Result | None) -> bool:
    """Return whether a result may take long to parse: a long text, or any list or object."""
    if result is None or isinstance(result.value, int | float | None):
        return False
    return not isinstance(result.value, str) or len(result.prior) + len(result.value) >= OFFLOAD_OUTPUT_CHARS


def news_of(delta: RunDelta, event: Event, began: float) -> list[RunEvent]:
    """Return the run events for an event of a run that began at `began`."""
    at = event.at - began
    news: list[RunEvent] = [_step_event(at, step, delta.machine) for _, step in delta.steps()] if delta.touched else []
    text = text_of(event, delta.machine, began) if isinstance(event, Progressed) else None
    return news if text is None else [*news, text]


def text_of(event: Progressed, machine: Machine, began: float) -> TextDelta | None:
    """Return the delta of new text, or `None` for a hedge, whose text counts only if the hedge wins."""
    attempt = machine.attempts.get(event.attempt)
    if attempt is None or attempt.node.attempts.hedge is attempt:
        return None
    step = attempt.node.step
    return TextDelta(
        at=event.at - began,
        step=attempt.node.id,
        name=step.name,
        label=step.label,
        text=event.text,
        tokens=attempt.generated,
        logprob=event.logprob,
        attempt=attempt.id,
        reasoning=event.reasoning,
        answer=writes_answer(attempt.node),
    )


def _step_event(at: float, record: StepRecord, machine: Machine) -> StepEvent:
    node = machine.nodes.get(record.step)
    return StepEvent(at=at, record=record, answer=node is not None and writes_answer(node))


def writes_answer(node: Node) -> bool:
    """Return whether a step's text is part of the answer from its first character on: the plan's output call, the call
    whose text the answer's form parses, or a turn of an agent."""
    step, op, root = node.step, node.step.op, node.run.root
    output = None if root is None else root.output
    if output is None or op.kind != "think":
        return False
    form = node.run.request.output
    if output is node:
        return not step.expands and not op.after
    if form is None:
        # Turns of a nested agent have a prefix in their names.
        return step.role == TURN and node.scope.owner is output and step.name.startswith(TURN)
    is_read = output.deps == (node,) and op.kind == "think" and op.sampling.structured is not None
    return is_read and not form.wrapped


class Questions:
    """Questions that are put before there is a handle to tell."""

    def __init__(self) -> None:
        self._early: list[Question] = []
        self._handle: Handle | None = None

    def add_question(self, question: Question) -> None:
        """Take a question."""
        if self._handle is None:
            self._early.append(question)
        else:
            self._handle.asked(question)

    def handle(self, handle: Handle) -> None:
        """Tell a handle of all questions from now on, and of those before."""
        self._handle = handle
        for question in self._early:
            handle.asked(question)


def read_answer(run: RunRecord, task: Task, made_of: Callable[[], Provenance] | None = None) -> Answer:
    """Return the answer for a finished run's record, as its task extracts it. `made_of`: returns the provenance."""
    finish = run.finish
    assert finish is not None
    result, answer, verified = finish.result, None, None
    failure = finish.failure
    if result is not None and result.value is not None:
        try:
            # A value that is not text was not generated: the answer is a merge's verdict or a tool's value.
            as_it_is = result.extracted or not isinstance(result.value, str)
            answer = result.value if as_it_is else task.extract(result.line)
            verified = task.verify(answer) if answer is not None else None
        except RAISED as error:
            failure = as_failure(TaskError(f"{type(task).__name__} could not read the output: {error}"))
    if failure is not None and finish.usage != failure.usage:
        failure = failure.model_copy(update={"usage": finish.usage})
    nodes = () if run.records is None else run.records.nodes
    fields: dict[str, Any] = dict(
        run=finish.run,
        status=finish.status,
        answer=answer,
        verified=verified,
        **({} if result is None else _output_fields(result, nodes)),
        anew=tuple([own.anew for node in nodes if (own := node.outcome.own) is not None and own.anew]),
        failure=failure,
        partial=finish.partial,
        made_of=made_of,
        report=report(run),
        plan=run.plan,
    )
    # A task may return anything; an answer that is a text holds nothing else that is not valid already.
    is_text = type(answer) is str and type(verified) in (bool, NoneType) and type(fields.get("value")) is str
    return _SOME_ANSWER.model_copy(update=fields) if is_text else Answer(**fields)


_SOME_ANSWER = Answer.model_construct(set(), run="", status="done")


def _output_fields(result: Result, nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the answer's fields from its output: from the output step, or from the call whose text a join chose."""
    writers = list(_calls_that_wrote(result, nodes))
    is_cut = all(call.finish == "length" for call in writers) if writers and result.finish == "stop" else False
    apart = split_reasoning(result.value)[0] if isinstance(result.value, str) else ""
    return {
        "value": result.value,
        "json_text": writers[0].text if writers and not isinstance(result.value, str) else "",
        "why": result.why,
        "data": result.data,
        "finish": "length" if is_cut else result.finish,
        "reasoning": result.reasoning or apart or next((call.reasoning for call in writers), ""),
        "tokens": result.tokens or next((call.tokens for call in writers if call.tokens), ()),
    }


def _calls_that_wrote(result: Result, nodes: Sequence[Node]) -> Iterator[Result]:
    """Yield the results of the model calls that wrote exactly the output's text, or the JSON of its value."""
    text, is_json = result.text.strip(), isinstance(result.value, dict | list)
    for node in nodes:
        own = node.outcome.own
        if own is None or node.step.op.kind != "think":
            continue
        if own.text.strip() == text or (is_json and loads(split_reasoning(own.text)[1]) == result.value):
            yield own
