"""A run's record, computed once from its events: steps, attempts, texts, usage and workers.

`RunLog` takes the input of a driver's watchers: an event, the machine after it, and the resulting actions. A live run
and a replayed run therefore have the same record. Run events, reports, answers, traces, rollouts, spans and metrics are
stateless projections of the record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..core.causes import Cause, sentence
from ..core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Expanded,
    Failed,
    Finish,
    Progressed,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WorkerDown,
    WorkerUp,
)
from ..core.ops import ModelCall, ToolCall
from ..core.plan import Plan
from ..core.record import StepRecord
from ..core.request import Request
from ..core.result import NO_USAGE, UNKNOWN, Failure, Result, Sources, Usage
from ..core.states import NAMES
from ..machine import Machine, Node, Run

Keep = Literal["steps", "live", "attempts", "texts"]
"""How much a log keeps; each keeps what those before it do."""
Ending = Literal["", "succeeded", "failed", "stopped", "lost"]
"""Outcome of an attempt; empty for a live attempt."""


_UNTOLD = Usage.model_construct({"sources"}, sources=UNKNOWN)
_SEEN = Sources.model_construct({"completion"}, completion="estimate")


@dataclass(slots=True)
class AttemptUsage:
    """The usage of one attempt, by source."""

    asked: int | None = None
    """Tokens that it was allowed to generate; `None` for a call of a tool."""
    seen: int = 0
    """Generated tokens in its reports."""
    billed: Usage | None = None
    """Usage that the worker reported at the end; `None`: the attempt has not ended, or its worker was lost."""

    @property
    def known(self) -> Usage:
        """Known usage: the billed usage, and at least the streamed tokens."""
        billed = self.billed or (NO_USAGE if self.asked is None else _UNTOLD)
        if billed.completion >= self.seen:
            return billed
        return billed.model_copy(update={"completion": self.seen, "sources": billed.sources + _SEEN})


@dataclass(slots=True)
class AttemptRecord:
    """One dispatch of a step to a worker. Times are seconds after the run began."""

    id: int
    run: str
    step: str
    worker: str
    op: ModelCall | ToolCall
    """Operation with resolved references."""
    start: float
    end: float | None = None
    """`None`: it has not ended, or the journal ends before it did."""
    ending: Ending = ""
    placed: str = ""
    """The policy's reason for the placement, if any."""
    stopping: float | None = None
    """Time at which the worker was asked to stop it."""
    stop_cause: Cause | None = None
    stop_reason: str = ""
    """The message of the cause."""
    first: float | None = None
    """Time of the first text, if streamed."""
    counts: AttemptUsage = field(default_factory=AttemptUsage)
    deltas: list[tuple[float, int, str]] = field(default_factory=list[tuple[float, int, str]])
    """The text in pieces, if texts are kept: time, tokens generated so far, text."""
    result: Result | None = None
    """Its result, or its partial result when it was stopped."""
    failure: Failure | None = None
    lane: int = 0
    """A worker slot that no other attempt held at the time; traces set it."""

    @property
    def read(self) -> bool:
        """Whether the attempt's text became the step's value."""
        return self.ending == "succeeded" and self.stopping is None

    @property
    def usage(self) -> Usage:
        """Known usage."""
        return self.counts.known

    @property
    def text(self) -> str:
        """The streamed text, if texts are kept."""
        return "".join(text for _, _, text in self.deltas)

    def progress(self, most: int = 60) -> list[tuple[float, int]]:
        """Return pairs of time and generated tokens, about `most` of them."""
        stride = max(1, len(self.deltas) // most)
        points = [*self.deltas[::stride], *(self.deltas[-1:] if stride > 1 else ())]
        return [(at, tokens) for at, tokens, _ in points]


@dataclass(slots=True)
class WorkerRecord:
    """One worker, and when it was there."""

    name: str
    slots: int
    serves: tuple[str, ...]
    models: tuple[str, ...] = ()
    ups: list[tuple[float, float | None]] = field(default_factory=list[tuple[float, float | None]])
    """From when until when it was there, by the machine's clock."""


@dataclass(slots=True)
class RunRecord:
    """One run."""

    id: str
    began: float
    """Time of submission by the machine's clock."""
    request: Request
    plan: Plan | None = None
    """First plan; `None` for a run taken over from another machine."""
    records: Run | None = None
    """The machine's records of the run; `None` for a run that was rejected at once or removed."""
    now: float = 0.0
    """Time of the last event by the machine's clock; after the end, the time of the end."""
    finish: Finish | None = None
    seen: int = 0
    """Steps of its plan that are known."""
    entered: dict[str, float] = field(default_factory=dict[str, float])
    """Time when each step entered the plan, in seconds after the run began, if texts are kept."""
    attempts: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    """In the order of their starts, where attempts are kept."""
    first: float | None = None
    """Time of each attempt's first report, in seconds after the run began."""
    _steps: tuple[StepRecord, ...] | None = None

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """Current records of its steps, expansions included, in the order in which they entered the plan."""
        if self._steps is not None:
            return self._steps
        return () if self.records is None else step_records(self.records, self.began)

    @property
    def output(self) -> str | None:
        """Id of the step whose value is the answer."""
        root = self.records.root if self.records is not None else None
        return None if root is None or root.output is None else root.output.id

    @property
    def seconds(self) -> float:
        """From submission to its last event."""
        return self.now - self.began

    @property
    def calls(self) -> list[AttemptRecord]:
        """The model calls whose outcome was read, in order of their starts."""
        return [attempt for attempt in self.attempts if attempt.op.kind == "think" and attempt.read]

    def freeze(self) -> None:
        """Keep the steps in their current state."""
        self._steps = self.steps


class RunDelta:
    """The changes by one event. Valid until the machine takes the next event."""

    __slots__ = ("at", "began", "ended", "finished", "first", "machine", "started", "stopping", "touched")

    def __init__(self, at: float, machine: Machine) -> None:
        self.at: float = at
        self.machine: Machine = machine
        """The machine, and its time."""
        self.began: list[RunRecord] = []
        """New runs; a run that is resumed without a submission here has no plan."""
        self.touched: list[tuple[RunRecord, int]] = []
        """Runs with new or moved steps, and their former number of steps."""
        self.started: list[AttemptRecord] = []
        self.stopping: list[AttemptRecord] = []
        self.ended: list[AttemptRecord] = []
        self.finished: list[RunRecord] = []
        self.first: RunRecord | None = None
        """The run that had its first report of an attempt."""

    def steps(self) -> list[tuple[RunRecord, StepRecord]]:
        """Return the records of steps, in order: new steps while they wait without a move (unless they had ended
        before), then a record for each move."""
        return [
            (run, step)
            for run, seen in self.touched
            if run.records is not None
            for step in _moved(self.machine, run.records, seen, run.began)
        ]


class RunLog:
    """Follows runs. Call `take` with each event that a machine has handled.

    Args:
        only: the runs to follow; all by default.
        keep: `steps` follows no attempts; `live` those that have not ended; `attempts` keeps those that have, with the
            runs that have (until `pop`), and `texts` also their texts, and when each step entered. A text that no one
            reads is not kept.
    """

    def __init__(self, only: Collection[str] | None = None, *, keep: Keep = "live") -> None:
        self.runs: dict[str, RunRecord] = {}
        """Runs that have not finished, by id; if attempts are kept, also finished runs until `pop`."""
        self.live: dict[int, AttemptRecord] = {}
        """Attempts that have not ended, by id."""
        self.workers: dict[str, WorkerRecord] = {}
        self._only = None if only is None else frozenset(only)
        self._attempts, self._kept, self._texts = keep != "steps", keep in ("attempts", "texts"), keep == "texts"

    def pop(self, run: str) -> RunRecord | None:
        """Remove a run and return it with the current state of its steps; `None` for an unknown run."""
        record = self.runs.pop(run, None)
        if record is None:
            return None
        if record.finish is None:
            self.live = {attempt.id: attempt for attempt in self.live.values() if attempt.run != run}
        record.freeze()
        record.records = None
        return record

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> RunDelta:
        """Record one event with the machine after it and its actions; return the changes."""
        delta = RunDelta(machine.now, machine)
        if machine.moves or isinstance(event, Submitted | Expanded):
            self._touch(event, machine, actions, delta)
        match event:
            case Succeeded() | Failed() | Stopped() | Progressed():
                if event.attempt in self.live:
                    self._attempt_news(self.live[event.attempt], event, delta)
            case WorkerUp() | WorkerDown():
                self._worker(event, delta.at)
            case _:
                pass
        for action in actions:
            self._acted(action, delta)
        if isinstance(event, Tick | WorkerDown):  # the machine cancelled them: no further events follow
            for attempt in [live for live in self.live.values() if live.id not in machine.attempts]:
                self._over(attempt, "lost", delta)
        if not self._kept:
            for run in delta.finished:
                del self.runs[run.id]
        return delta

    def _touch(self, event: Event, machine: Machine, actions: Sequence[Action], delta: RunDelta) -> None:
        names = dict.fromkeys([move[1].partition(":")[0] for move in machine.moves])
        if isinstance(event, Submitted):
            names[event.run] = None
        elif isinstance(event, Expanded):
            names[event.step.partition(":")[0]] = None
        for name in names:
            if self._only is not None and name not in self._only:
                continue
            records = machine.runs.get(name) or machine.find_finished(name)
            run = self.runs.get(name)
            if run is None:
                if isinstance(event, Submitted) and event.run == name:
                    refused = any(isinstance(action, Finish) and action.run == name for action in actions)
                    if records is None and not refused:  # a second copy of an ended run's submission
                        continue
                    run = RunRecord(name, event.at, event.request, event.plan)
                elif records is not None:  # it was submitted to another machine, and continues here
                    run = RunRecord(name, records.submitted, records.request)
                else:
                    continue
                self.runs[name] = run
                delta.began.append(run)
            if records is None:
                continue
            run.records, run.now, seen = records, delta.at, run.seen
            run.seen = len(records.nodes)
            delta.touched.append((run, seen))
            if self._texts:
                for node in records.nodes[seen:]:
                    run.entered[node.id] = delta.at - run.began

    def _attempt_news(
        self, attempt: AttemptRecord, event: Progressed | Succeeded | Failed | Stopped, delta: RunDelta
    ) -> None:
        run, counts = self.runs[attempt.run], attempt.counts
        run.now = delta.at
        match event:
            case Progressed():
                counts.seen += event.tokens
                at = delta.at - run.began
                if self._texts:
                    attempt.deltas.append((at, counts.seen, event.text))
                if attempt.first is None and event.tokens:
                    attempt.first = at
                if run.first is None:
                    run.first, delta.first = at, run
            case Failed():
                untold = event.failure.lost and event.usage == NO_USAGE
                attempt.failure, counts.billed = event.failure, None if untold else event.usage
                self._over(attempt, "failed", delta)
            case _:
                attempt.result, counts.billed = event.result, event.result.usage
                self._over(attempt, "succeeded" if isinstance(event, Succeeded) else "stopped", delta)

    def _over(self, attempt: AttemptRecord, ending: Ending, delta: RunDelta) -> None:
        del self.live[attempt.id]
        attempt.end, attempt.ending = delta.at - self.runs[attempt.run].began, ending
        delta.ended.append(attempt)

    def _worker(self, event: WorkerUp | WorkerDown, at: float) -> None:
        there = self.workers.get(event.worker)
        if isinstance(event, WorkerUp):
            if there is None:
                there = self.workers[event.worker] = WorkerRecord(event.worker, event.slots, event.serves)
            there.slots, there.models = max(there.slots, event.slots), event.models
            if not there.ups or there.ups[-1][1] is not None:
                there.ups.append((at, None))
        elif there is not None and there.ups and there.ups[-1][1] is None:
            there.ups[-1] = (there.ups[-1][0], at)

    def _acted(self, action: Action, delta: RunDelta) -> None:
        match action:
            case Dispatch(job=job) if self._attempts and job.run in self.runs:
                run, op = self.runs[job.run], job.op
                counts = AttemptUsage(op.sampling.max_tokens if isinstance(op, ModelCall) else None)
                attempt = AttemptRecord(
                    job.attempt, job.run, job.step, action.worker, op, delta.at - run.began,
                    placed=action.reason, counts=counts,
                )  # fmt: skip
                self.live[attempt.id] = attempt
                if self._kept:
                    run.attempts.append(attempt)
                delta.started.append(attempt)
            case Cancel() if action.attempt is not None and action.attempt in self.live:
                attempt = self.live[action.attempt]
                attempt.stopping = delta.at - self.runs[attempt.run].began
                attempt.stop_cause, attempt.stop_reason = action.cause, sentence(action.cause, action.about)
                delta.stopping.append(attempt)
            case Finish() if action.run in self.runs:
                run = self.runs[action.run]
                run.finish, run.now = action, delta.at
                if self._kept:  # now, because a driver clears the machine's records after the answer
                    run.freeze()
                delta.finished.append(run)
            case _:
                pass


def _moved(machine: Machine, run: Run, seen: int, began: float) -> list[StepRecord]:
    records: list[StepRecord] = []
    for node in run.nodes[seen:]:
        if not node.ended or not node.story or node.story[-1][0] >= machine.now:
            record = step_record(node, began)
            record.state, record.moves = "waiting", ()
            records.append(record)
    nodes = machine.nodes if run.id in machine.runs else {node.id: node for node in run.nodes}
    later: dict[str, int] = {}
    last: list[StepRecord] = []
    for move in reversed(machine.moves):  # backwards: the last move determines a step's state
        node = nodes.get(move[1])
        if node is not None and node.run is run:
            record = step_record(node, began)
            after = later.get(node.id, 0)
            if after:
                record.moves = record.moves[:-after]
                record.state = record.moves[-1][1]
            later[node.id] = after + 1
            last.append(record)
    last.reverse()
    return [*records, *last]


def step_record(node: Node, began: float) -> StepRecord:
    """Return a step's current record. `began`: time of the run's submission by the machine's clock."""
    step, own, spent = node.step, node.outcome.own, node.attempts.spent
    record = StepRecord(node.id, step.name, step.op.kind, step.label)
    record.plan = step
    record.state = NAMES[node.state]
    record.moves = node.changes(began)
    record.tries, record.path_tokens = node.attempts.count, node.path_tokens.total or node.path_tokens.own
    record.cause = node.outcome.cause
    if node.outcome.failure is not None:
        record.failure, record.error = node.outcome.failure, node.outcome.failure.code
    if spent is not None:
        record.spent = spent
        record.tokens = spent.completion
    if node.scope.owner is not None:
        record.owner = node.scope.owner.id
    if node.deps:
        record.needs = tuple([dep.id for dep in node.deps])
    if node.after is not None:
        record.after, record.after_own = node.after.id, node.after_own
        if node.after_own:
            record.needs = (*record.needs, node.after.id)
    if own is not None:
        record.usage, record.value, record.why, record.data = own.usage, own.value, own.why, own.data
        record.logprob, record.signals = own.logprob, own.signals
    if node.outcome.result is not None:
        record.output = node.outcome.result.value
        inner = node.inner.output if node.inner is not None else None
        if inner is not None and inner.outcome.result is node.outcome.result:
            record.source = inner.id
    if node.attempts.live is not None:
        record.tokens += node.attempts.live.tokens + (
            node.attempts.hedge.tokens if node.attempts.hedge is not None else 0
        )
    return record


def step_records(run: Run, began: float) -> tuple[StepRecord, ...]:
    """Return all steps of a run, expansions included, in the order in which they entered the plan."""
    return tuple([step_record(node, began) for node in run.nodes])
