"""Records one run's trace while a machine takes its events: who ran what when, and at the end what every step was.

Takes what the driver's watchers get, so it serves a replay and a live run alike. It decides what of a machine's records
goes into a trace; it does not know journals, files or pictures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from ...core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
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
from ...core.plan import Budget, Join, Plugin, Think
from ...core.result import Result, Usage
from ...core.values import as_text
from ...machine.machine import Machine
from ...machine.records import Node, Run
from ...runtime.client.report import report
from .model import Attempt, Change, Clock, Host, Piece, Step, Trace
from .prefixes import Context, prefix_tree
from .votes import votes_of

__all__ = ["Recorder"]

_OPTION = 40
"""Characters of one option of a plugin that are shown."""


class Recorder:
    """Collects the trace of one run. Call `take` after each event the machine handled, then `trace` once."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._submitted: Submitted | None = None
        self._finish: Finish | None = None
        self._record: Run | None = None
        self._now = 0.0
        self._entered: dict[str, float] = {}
        self._seen = 0
        self._attempts: dict[int, Attempt] = {}
        self._open: dict[int, Attempt] = {}
        self._progress: dict[int, list[tuple[float, int]]] = {}
        self._texts: dict[int, list[str]] = {}
        self._results: dict[int, Result] = {}
        self._args: dict[str, object] = {}
        self._hosts: dict[str, Host] = {}
        self._voices: dict[str, float] = {}

    @property
    def begun(self) -> bool:
        """Whether the run was submitted."""
        return self._submitted is not None

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        """Take note of one event and what followed."""
        now = self._now = machine.now
        match event:
            case Submitted() if event.run == self.run and self._submitted is None:
                self._submitted = event
            case WorkerUp():
                host = self._hosts.setdefault(event.worker, Host(event.worker, event.slots, event.serves))
                host.slots = max(host.slots, event.slots)
                if not host.ups or host.ups[-1][1] is not None:
                    host.ups.append((now, None))
            case WorkerDown():
                host = self._hosts.get(event.worker)
                if host is not None and host.ups and host.ups[-1][1] is None:
                    host.ups[-1] = (host.ups[-1][0], now)
            case Progressed() | Succeeded() | Failed() | Stopped():
                self._heard(event, now)
            case _:
                pass
        for action in actions:
            self._acted(action, now)
        if isinstance(event, Tick | WorkerDown):
            for attempt in [each for each in self._open.values() if each.id not in machine.attempts]:
                self._over(attempt, now, "lost")
        run = machine.runs.get(self.run) or next((each for each in machine.retired if each.id == self.run), None)
        if run is not None:
            self._record = run
            for node in run.nodes[self._seen :]:
                self._entered[node.id] = now
            self._seen = len(run.nodes)

    def _acted(self, action: Action, now: float) -> None:
        match action:
            case Dispatch() if action.job.run == self.run:
                job = action.job
                reason = getattr(action, "reason", "")
                attempt = Attempt(id=job.attempt, step=job.step, worker=action.worker, start=now, placed=reason)
                self._attempts[attempt.id] = self._open[attempt.id] = attempt
                if job.op.kind == "call":
                    self._args[job.step] = job.op.args
            case Cancel() if action.attempt is not None and action.attempt in self._open:
                attempt = self._open[action.attempt]
                attempt.stopping, attempt.stop_reason = now, action.reason
            case Finish() if action.run == self.run:
                self._finish = action
            case _:
                pass

    def _heard(self, event: Progressed | Succeeded | Failed | Stopped, now: float) -> None:
        attempt = self._open.get(event.attempt)
        if attempt is None:
            return
        if isinstance(event, Progressed):
            points = self._progress.setdefault(attempt.id, [])
            points.append((now, (points[-1][1] if points else 0) + event.tokens))
            if attempt.first is None and event.tokens:
                attempt.first = now
            self._texts.setdefault(attempt.id, []).append(event.text)
            return
        if isinstance(event, Failed):
            attempt.failure, attempt.usage = event.failure, event.usage
            self._over(attempt, now, "failed")
            return
        result = event.result
        self._results[attempt.id] = result
        attempt.usage, attempt.finish = result.usage, result.finish
        attempt.read = isinstance(event, Succeeded) and attempt.stopping is None
        self._over(attempt, now, "succeeded" if isinstance(event, Succeeded) else "stopped")

    def _over(self, attempt: Attempt, now: float, ending: str) -> None:
        del self._open[attempt.id]
        attempt.end, attempt.ending = now, ending  # pyright: ignore[reportAttributeAccessIssue]
        heard = self._progress.get(attempt.id)
        if heard and attempt.usage.completion < heard[-1][1]:
            attempt.usage = attempt.usage.model_copy(update={"completion": heard[-1][1]})

    # -- the trace -----------------------------------------------------------------------------------------------------

    def trace(self, clocks: Sequence[Clock], notes: Sequence[str] = ()) -> Trace | None:
        """Return the trace, times in seconds after submission, or `None` if the run was never submitted here.

        Args:
            clocks: how the events' times lie on the wall clock, at least one.
            notes: what a reader should know besides.
        """
        submitted, finish = self._submitted, self._finish
        if submitted is None:
            return None
        began, request = submitted.at, submitted.request
        trace = Trace(
            run=self.run,
            text=request.text,
            task=_named(request.task),
            planner=_named(request.planner),
            policies=tuple(map(_named, request.policies)),
            budget=_limits(request.budget),
            seed=request.seed,
            clocks=tuple(Clock(each.at - began, each.zero + began, each.exact) for each in clocks),
            seconds=self._now - began,
            notes=list(notes),
        )
        if finish is not None:
            trace.status, trace.failure, trace.usage = finish.status, finish.failure, finish.usage
            trace.critical_path_tokens = finish.critical_path_tokens
            trace.answer = "" if finish.result is None else as_text(finish.result.value)
        else:
            trace.usage = sum((each.usage for each in self._attempts.values()), Usage())
            trace.notes.append("the journal ends before the run did: it was cut short, or it is still running")
        if len(clocks) > 1:
            trace.notes.append(f"it was interrupted and resumed: {len(clocks)} sessions, whose pauses are left out")
        if not all(each.exact for each in clocks):
            trace.notes.append("the journal tells wall-clock time to the second only")
        run = self._record
        if run is None:
            return trace
        trace.attempts = [self._shifted(each, began) for each in self._attempts.values()]
        trace.steps = self._steps(run, began)
        if finish is not None and finish.result is not None:
            trace.verified = _verified(run, finish.result)
        chain = report(finish, run, began, self._now).waited_for if finish is not None else ()
        waited_for = {spell.step for spell in chain}
        for step in trace.steps:
            step.chain = step.id in waited_for
        trace.hosts = [_host(each, began, trace.seconds) for each in self._hosts.values()]
        _assign_lanes(trace.attempts)
        trace.votes = votes_of(run, began)
        trace.segments, trace.unit = prefix_tree(self._contexts(run))
        return trace

    def _shifted(self, attempt: Attempt, began: float) -> Attempt:
        def shift(at: float | None) -> float | None:
            return None if at is None else at - began

        points = self._progress.get(attempt.id, [])
        stride = max(1, len(points) // 60)  # enough for a picture
        kept = [*points[::stride], *(points[-1:] if stride > 1 else [])]
        return replace(
            attempt,
            start=attempt.start - began,
            end=shift(attempt.end),
            stopping=shift(attempt.stopping),
            first=shift(attempt.first),
            progress=tuple((at - began, tokens) for at, tokens in kept),
        )

    def _steps(self, run: Run, began: float) -> list[Step]:
        usage: dict[str, Usage] = {}
        last: dict[str, int] = {}
        for attempt in self._attempts.values():
            usage[attempt.step] = usage.get(attempt.step, Usage()) + attempt.usage
            last[attempt.step] = attempt.id
        return [self._step(node, began, usage.get(node.id, Usage()), last.get(node.id)) for node in run.nodes]

    def _step(self, node: Node, began: float, usage: Usage, attempt: int | None) -> Step:
        plan, op, own = node.step, node.step.op, node.own
        step = Step(
            id=node.id,
            name=plan.name,
            kind=op.kind,
            label=plan.label,
            owner=node.scope.owner.id if node.scope.owner is not None else None,
            needs=tuple(dep.id for dep in node.deps),
            after=node.after.id if node.after is not None else None,
            entered=self._entered.get(node.id, began) - began,
            moves=tuple(Change(at - began, finish, reason) for at, _, _, finish, reason in node.story),
            usage=usage,
            failure=node.failure,
            tries=node.tries,
            expands=plan.expands,
            side_effects=plan.side_effects,
            budget=_limits(plan.budget),
            priority=plan.priority,
        )
        match op:
            case Think():
                step.prompt = _pieces(node, op)
                defaults = {"max_tokens", "temperature"}
                given = op.sampling.model_dump(mode="json", exclude_defaults=True)
                step.sampling = {**op.sampling.model_dump(mode="json", include=defaults), **given}
            case Join():
                step.merge, step.rule = _named(op.merge), _rule(op)
            case _:
                step.tool = op.tool
                step.args = self._args.get(node.id, op.args)  # pyright: ignore[reportAttributeAccessIssue]
        result = own or (self._results.get(attempt) if attempt is not None else None)
        if result is not None:
            step.text, step.why, step.logprob = as_text(result.value), result.why, result.logprob
            signals = getattr(result, "signals", None)
            step.signals = signals.model_dump(mode="json") if signals is not None else None
        if not step.text and attempt in self._texts:
            step.text = "".join(self._texts[attempt])
        if step.text == "null" and (result is None or result.value is None):
            step.text = ""
        if node.result is not None and own is not None and node.result.value != own.value:
            step.value = as_text(node.result.value)
        return step

    def _contexts(self, run: Run) -> list[Context]:
        """Return what the engine read and wrote for each model call that has begun, in order of their starts."""
        nodes = {node.id: node for node in run.nodes}
        told: dict[str, int] = {}
        for attempt in self._attempts.values():  # of a step that was tried more than once: all have the same context
            if attempt.read or not self._attempts[told.get(attempt.step, attempt.id)].read:
                told[attempt.step] = attempt.id
        made: list[Context] = []
        for attempt in sorted(self._attempts.values(), key=lambda each: (each.start, each.id)):
            node = nodes.get(attempt.step)
            if node is None or node.step.op.kind != "think" or told[node.id] != attempt.id:
                continue
            result = self._results.get(attempt.id)
            texts = "".join(self._texts.get(attempt.id, ()))
            made.append(Context(node.id, node.prompt, result, texts, attempt.usage, _line(node)))
        return made


def _line(node: Node) -> frozenset[str]:
    """Return the steps whose contexts a step continues, however indirectly."""
    line: set[str] = set()
    above = [node.after]
    while above:
        each = above.pop()
        if each is None or each.id in line:
            continue
        line.add(each.id)
        above.append(each.after)
        if each.inner is not None:
            above.append(each.inner.output)
    return frozenset(line)


def _named(plugin: Plugin) -> str:
    if not plugin.options:
        return plugin.name
    said = ",".join(f"{key}={_short(value)}" for key, value in plugin.options.items())
    return f"{plugin.name}:{said}"


def _short(value: object) -> str:
    if isinstance(value, dict) and "name" in value:
        return str(value["name"])
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return said if len(said) <= _OPTION else said[: _OPTION - 1] + "…"


def _limits(budget: Budget | None) -> str:
    if budget is None:
        return ""
    return ", ".join(f"{key} {value:g}" for key, value in budget.model_dump(exclude_none=True).items())


def _rule(join: Join) -> str:
    parts = [join.tolerate if join.quorum is None else f"quorum of {join.quorum}"]
    if join.early:
        parts.append("early: closes as soon as the verdict is certain")
    if join.deadline is not None:
        parts.append(f"deadline {join.deadline:g} s")
    return ", ".join(parts)


def _pieces(node: Node, op: Think) -> tuple[Piece, ...]:
    """Return a prompt with references resolved as far as their steps have values."""
    values = {dep.step.name: dep for dep in node.deps}
    pieces: list[Piece] = []
    if node.after is not None:
        pieces.append(Piece("context", step=node.after.id, own=node.after_own))
    for part in op.prompt:
        match part.kind:
            case "text":
                pieces.append(Piece("text", text=part.text))
            case "tokens":
                pieces.append(Piece("tokens", tokens=len(part.ids)))
            case "ref":
                dep = values.get(part.step)
                said = as_text(dep.result.value) if dep is not None and dep.result is not None else ""
                pieces.append(Piece("value", text=said, step=dep.id if dep is not None else part.step))
    return tuple(pieces)


def _verified(run: Run, result: Result) -> bool | None:
    try:
        value = result.value
        found = run.task.extract(value) if isinstance(value, str) else value
        return None if found is None else run.task.verify(found)
    except Exception:  # a task of somebody else's, asked about what it did not expect: then it cannot tell
        return None


def _host(host: Host, began: float, seconds: float) -> Host:
    ups = [(start - began, None if end is None else end - began) for start, end in host.ups]
    shown = [(max(0.0, start), end) for start, end in ups if end is None or end > 0]
    return Host(host.name, host.slots, host.serves, [each for each in shown if each[0] <= seconds])


def _assign_lanes(attempts: Sequence[Attempt]) -> None:
    """Give each attempt the lowest slot of its worker that is free for all of its time."""
    free_from: dict[str, list[float]] = {}
    for attempt in sorted(attempts, key=lambda each: (each.start, each.id)):
        lanes = free_from.setdefault(attempt.worker, [])
        end = attempt.end if attempt.end is not None else float("inf")
        for lane, until in enumerate(lanes):
            if until <= attempt.start:
                attempt.lane, lanes[lane] = lane, end
                break
        else:
            attempt.lane = len(lanes)
            lanes.append(end)
