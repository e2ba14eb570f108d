"""A run without workers, to estimate usage and cost: each model call immediately returns a text of a given length."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from ...core.errors import InvariantError
from ...core.events import (
    Cancel,
    Count,
    Counted,
    Dispatch,
    Event,
    Expand,
    Finish,
    Job,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    WorkerUp,
)
from ...core.interfaces import PlanningContext
from ...core.ops import ModelCall, Text
from ...core.plan import Plan, validate
from ...core.request import Request
from ...core.result import Price, Result, Usage
from ...core.tools.tool import ToolSpec
from ...machine import Machine
from ..driver.expander import Expander
from ..plugins.loader import Plugins

Length = Callable[[Job, ModelCall], int]
"""Returns the number of tokens that a model call generates."""
_RUN = "dry"
_REPORT_TOKENS = 16
"""Tokens between two reports, as for workers: each call may exceed a non-strict budget by this number."""
_TOKEN_CHARACTERS = 4
_TOKEN_S = 1 / 400
"""Seconds per token of an assumed engine, for prices by the hour."""


def dry_run(
    request: Request, plan: Plan | None, length: Length, *, tools: Sequence[ToolSpec] = (), price: Price | None = None
) -> Usage:
    """Return the usage of a request for given lengths of its model calls; tools return `null`.

    Args:
        request: its budget, policies and merge apply. plan: the plan; by default, the request's planner makes the plan
        and its patches. length: tokens per model call. Prompts count one token per four characters. tools: for the
        planner. price: of tokens and time.

    Raises `PlanError`, `PlannerError`, `PluginError`, `TaskError` as a real run does.
    """
    return _DryRun(length, price).run(request, plan, tools)


class _DryRun:
    """An event queue replaces workers and clock: calls generate concurrently, and report in turn."""

    def __init__(self, length: Length, price: Price | None) -> None:
        self._length, self._price = length, price
        self._plugins = Plugins()
        self._machine, self._expander = Machine(self._plugins), Expander()
        self._events: deque[Event] = deque()
        self._running: dict[int, tuple[Job, Result]] = {}
        self._reported: dict[int, int] = {}
        self._now = 0.0
        self._wake: float | None = None
        self._usage: Usage | None = None

    def run(self, request: Request, plan: Plan | None, tools: Sequence[ToolSpec]) -> Usage:
        if plan is None:
            brief = PlanningContext(
                request, self._plugins.task(request.task, request.text), tuple(tools), self._plugins
            )
            submitted = self._expander.start(_RUN, self._plugins.planner(request.planner), brief, 0.0)
        else:
            submitted = Submitted(at=0.0, run=_RUN, request=request, plan=plan)
        validate(submitted.plan)
        worker = WorkerUp(0.0, "dry", max(64, len(submitted.plan.steps)), ("think", "call"), reports=_REPORT_TOKENS)
        if self._price is not None:
            worker.prices = {"": self._price}
        self._events += [worker, submitted]
        while self._usage is None:
            self._handle(self._next_event())
        return self._usage

    def _next_event(self) -> Event:
        if self._events:
            return self._events.popleft()
        if self._wake is None:
            raise InvariantError("the dry run is stuck: no event is left")
        self._now, self._wake = max(self._now, self._wake), None
        return Tick(at=self._now)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Progressed | Succeeded) and event.attempt not in self._running:
            return  # it was cancelled meanwhile
        if isinstance(event, Succeeded):
            del self._running[event.attempt]
        for action in self._machine.handle(event):
            match action:
                case Dispatch():
                    self._start(action.job)
                case Cancel():
                    self._cancel(action)
                case Expand():
                    self._events += self._expander.expand(action, self._machine, self._now)
                case Count():
                    self._events.append(Counted(at=self._now, step=action.step))
                case WakeAt():
                    self._wake = action.at
                case Finish():
                    self._usage = action.usage
        if isinstance(event, Progressed) and event.attempt in self._running:
            self._report(event.attempt)
        if self._expander.flows:
            self._events += self._expander.collect_events(self._machine, self._now)

    def _start(self, job: Job) -> None:
        result = Result(value=None)
        if isinstance(job.op, ModelCall):
            tokens = max(1, min(self._length(job, job.op), job.op.sampling.max_tokens))
            # All texts differ, so that no vote ends early.
            text = f"{job.step} ".ljust(_TOKEN_CHARACTERS * tokens, "x")[: _TOKEN_CHARACTERS * tokens]
            prompt = sum(_count_tokens(part) for part in job.op.parts)
            result = Result(value=text, usage=self._priced(Usage(prompt=prompt, completion=tokens)))
        self._running[job.attempt], self._reported[job.attempt] = (job, result), 0
        self._report(job.attempt)

    def _report(self, attempt: int) -> None:
        """Queue an attempt's next report, or its end."""
        job, result = self._running[attempt]
        streams = isinstance(job.op, ModelCall) and job.op.stream
        before = self._reported[attempt]
        tokens = min(_REPORT_TOKENS, result.usage.completion - before)
        if not tokens or not (job.report or streams):
            self._events.append(Succeeded(at=self._now, attempt=attempt, result=result))
            return
        self._reported[attempt] = upto = before + tokens
        text = result.text[_TOKEN_CHARACTERS * before : _TOKEN_CHARACTERS * upto] if streams else ""
        self._events.append(Progressed(at=self._now, attempt=attempt, text=text, tokens=tokens))

    def _cancel(self, action: Cancel) -> None:
        if action.attempt is None or action.attempt not in self._running:
            return
        _, result = self._running.pop(action.attempt)
        usage = Usage(prompt=result.usage.prompt, completion=self._reported[action.attempt])
        stopped = Result(value=None, finish="cancelled", usage=self._priced(usage))
        self._events.append(Stopped(at=self._now, attempt=action.attempt, result=stopped))

    def _priced(self, usage: Usage) -> Usage:
        if self._price is None:
            return usage
        return usage.model_copy(update={"cost": self._price.of(usage, usage.completion * _TOKEN_S)})


def _count_tokens(part: object) -> int:
    return math.ceil(len(part.text) / _TOKEN_CHARACTERS) if isinstance(part, Text) else len(getattr(part, "ids", ()))
