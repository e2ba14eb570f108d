"""Where the time of a run went: its critical path by use, and the change that would have shortened it most.

A step has three nodes in the graph: it starts, its attempt ends, it is done. An edge weighs the measured seconds
between two nodes, by use. The heaviest path to the output's end is the critical path. Without the seconds of one use,
another path may be the heaviest: the difference is what the run would have saved.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from ...core.messages import pluralise
from ...core.ops import ModelCall, ToolCall
from ...core.record import StepRecord
from ...runtime.runlog import AttemptRecord
from ..common.graph import longest_path
from .model import Trace

USES = {
    "write": "model writes",
    "read": "model reads the prompt",
    "again": "model reads again",
    "queue": "queue",
    "tools": "tools",
    "approvals": "approvals and questions",
    "retries": "attempts that failed",
    "other": "planning and transport",
}
"""Uses of time. `again`: prompt tokens that an earlier call of the run had in its context."""
WORTH = 0.1
"""Share of a run's time from which a use, if saved, is worth a remedy."""
Seconds = dict[str, float]


@dataclass(frozen=True, slots=True)
class TimeShares:
    """A run's seconds by use."""

    seconds: float
    uses: Seconds
    """By the keys of `USES`; they add up to `seconds`."""
    path: tuple[tuple[str, Seconds], ...]
    """The critical path: steps, each with its seconds by use."""
    savings: Seconds
    """How much shorter the run would have been without a use."""
    remedy: str
    """What would have helped most."""
    unsplit: int
    """Model calls on the path that did not stream: their reading counts as writing."""


@dataclass(slots=True)
class _StepTimes:
    """A step with its times, in seconds after the run began."""

    step: StepRecord
    ready: float
    """When it was ready first."""
    queued: float
    """When it was ready last."""
    start: float
    end: float
    """End of its last attempt; a join's end, or the start of its expansion."""
    done: float
    attempt: AttemptRecord | None
    again: int = 0
    """Prompt tokens that it computed although they had been in the context of `source`."""
    computed: int = 0
    source: str = ""

    @property
    def op(self) -> ModelCall | ToolCall | None:
        """The operation with resolved references; `None` for a join."""
        return None if self.attempt is None else self.attempt.op


@dataclass(slots=True)
class _Graph:
    """The measured edges of a run."""

    trace: Trace
    asked: Mapping[str, float]
    timed: dict[str, _StepTimes]
    edges: dict[tuple[str, str], Seconds] = field(default_factory=dict[tuple[str, str], Seconds])
    ended: list[_StepTimes] = field(init=False)
    """The steps in the order of their ends."""

    def __post_init__(self) -> None:
        self.ended = sorted(self.timed.values(), key=lambda timed: timed.done)

    def add_all(self) -> None:
        """Enter the edges of all steps that ended."""
        for timed in self.timed.values():
            name, source = timed.step.step, self.timed.get(timed.step.source or "")
            before, at = self._needs(timed)
            waits = {"other": max(0.0, timed.ready - at), "retries": timed.queued - timed.ready}
            waits["queue"] = timed.start - timed.queued
            for node, lead in before:
                self.edges[node, f"start {name}"] = {**waits, **lead}
            self.edges[f"start {name}", f"end {name}"] = self._run(timed, timed.end - timed.start)
            last = (f"end {name}", timed.end) if source is None else (f"done {source.step.step}", source.done)
            self.edges[last[0], f"done {name}"] = {"other": max(0.0, timed.done - last[1])}

    def _needs(self, timed: _StepTimes) -> tuple[list[tuple[str, Seconds]], float]:
        """Return the nodes that a step waited for, each with seconds of its own, and the time of the last one."""
        step, waits = timed.step, list[tuple[str, float, Seconds]]()
        for name in step.needs:
            need = self.timed.get(name)
            if need is not None:
                kind, at = ("end", need.end) if step.after_own and name == step.after else ("done", need.done)
                # A join may be decided, and a flow go on, before all needs have ended.
                waits += [(f"{kind} {name}", at, {})] if at <= timed.ready else []
        owner = self.timed.get(step.owner or "")
        if owner is not None and step.entered < owner.end:
            lag = self._run(owner, max(0.0, step.entered - owner.start))
            waits.append((f"start {owner.step.step}", max(step.entered, owner.start), lag))
        elif owner is not None:
            waits.append((f"end {owner.step.step}", owner.end, {}))
        if step.entered > max((at for _, at, _ in waits), default=0.0):
            waits += self._awaited(step.entered)
        return [(node, lead) for node, _, lead in waits] or [("", {})], max((at for _, at, _ in waits), default=0.0)

    def _awaited(self, entered: float) -> list[tuple[str, float, Seconds]]:
        """Return the node that a flow had awaited when it made a step: the step that ended last."""
        last = bisect_right(self.ended, entered, key=lambda other: other.done)
        earlier = (other for other in reversed(self.ended[:last]) if other.step.entered < entered)
        return [(f"done {other.step.step}", other.done, {}) for other in itertools.islice(earlier, 1)]

    def _run(self, timed: _StepTimes, seconds: float) -> Seconds:
        """Return the first seconds of a step's attempt by use."""
        attempt = timed.attempt
        if timed.step.kind == "call":
            asked = min(self.asked.get(timed.step.step, 0.0), seconds)
            return {"approvals": asked, "tools": seconds - asked}
        if attempt is None:
            return {"other": seconds}
        read = 0.0 if attempt.first is None else min(max(0.0, attempt.first - timed.start), seconds)
        again = read * timed.again / max(1, timed.computed)
        return {"read": read - again, "again": again, "write": seconds - read}

    def longest(self, end: str, without: str = "") -> tuple[tuple[str, ...], float]:
        """Return the critical path and its seconds without those of one use."""
        weights = [
            (*edge, sum(seconds for use, seconds in uses.items() if use != without))
            for edge, uses in self.edges.items()
        ]
        chain = longest_path(weights, end)
        return chain.names, chain.length


def time_shares(trace: Trace, asked: Mapping[str, float]) -> TimeShares | None:
    """Return where a run's time went; `None` for a run without an output. `asked`: seconds that people took to answer,
    by step."""
    timed = {step.step: times for step in trace.steps if (times := _times(step)) is not None}
    if trace.output not in timed:
        return None
    _count_repeated_reads(trace, timed)
    graph = _Graph(trace, asked, timed)
    graph.add_all()
    end = f"done {trace.output}"
    names, length = graph.longest(end)
    uses: Seconds = dict.fromkeys(USES, 0.0)
    by_step: dict[str, Seconds] = {}
    for edge in itertools.pairwise(names):
        for use, seconds in graph.edges[edge].items():
            uses[use] += seconds
            # A step that enters while its owner is writing begins with that part of the owner's own time.
            step = edge[use in ("other", "queue", "retries")].partition(" ")[2]
            spent = by_step.setdefault(step, {})
            spent[use] = spent.get(use, 0.0) + seconds
    uses["other"] += max(0.0, trace.seconds - length)
    path = tuple(
        (step, {use: seconds for use, seconds in spent.items() if seconds > 0})
        for step, spent in by_step.items()
        if step and timed[step].attempt is not None
    )
    savings = {use: length - graph.longest(end, use)[1] for use in USES if use not in ("write", "read", "other")}
    attempts = [attempt for step, _ in path if (attempt := timed[step].attempt) is not None]
    unsplit = sum(attempt.op.kind == "think" and attempt.first is None for attempt in attempts)
    remedy = _remedy(trace, timed, path, savings)
    return TimeShares(trace.seconds, dict(uses), path, savings, remedy, unsplit)


def _times(step: StepRecord) -> _StepTimes | None:
    """Return a step with its times, or `None` if it has not ended by itself: a join may read one that failed."""
    moves = step.moves
    if not moves or step.state not in ("done", "failed"):
        return None
    left = next((at for at, state, _ in moves if state in ("expanding", "done", "failed")), moves[-1][0])
    first = next((at for at, state, _ in moves if state == "ready"), left)
    ready, start = step.ready_at, step.started_at
    if ready is None or start is None:
        ready = start = left
    return _StepTimes(step, first, ready, start, max(start, left), moves[-1][0], None)


def _count_repeated_reads(trace: Trace, timed: Mapping[str, _StepTimes]) -> None:
    """Note each step's attempt, and the prompt tokens that it computed after another step had them in its context."""
    for attempt in trace.attempts:
        step = timed.get(attempt.step)
        if step is not None and (attempt.read or step.attempt is None or not step.attempt.read):
            step.attempt = attempt
    for segment in trace.segments:
        readers: dict[str | None, str] = {}  # by model: no other model's cache can serve a prompt
        for contact in segment.contacts:
            step = timed.get(contact.step)
            if step is None or not isinstance(step.op, ModelCall):
                continue
            before = readers.setdefault(step.op.model, contact.step)
            step.computed += contact.computed
            if before != contact.step and contact.computed:
                step.again += contact.computed
                step.source = step.source or before


def _remedy(
    trace: Trace, timed: Mapping[str, _StepTimes], path: Sequence[tuple[str, Seconds]], savings: Mapping[str, float]
) -> str:
    use, saved = max(savings.items(), key=itemgetter(1))
    if saved < WORTH * trace.seconds:
        use = "write"
    step, seconds = max(((step, uses.get(use, 0.0)) for step, uses in path), key=itemgetter(1), default=("", 0.0))
    if not seconds:
        return ""
    at = timed[step]
    name = at.step.name
    match use:
        case "queue":
            why = _explain_queue(trace, at, seconds)
        case "again":
            why = _explain_repeated_read(trace, at, timed.get(at.source))
        case "tools":
            why = _explain_tool(timed, path, at)
        case "approvals":
            why = f"{name} waited {seconds:.3g} s for a person: answer sooner, or allow the call beforehand"
        case "retries":
            failures = [other.failure.message for other in trace.attempts if other.step == step and other.failure]
            error = f" ({failures[-1][:80]})" if failures else ""
            why = f"{name} ran {at.step.tries} times{error}: what failed"
        case _:
            tokens, whole = at.step.usage.completion, sum(timed[step].step.usage.completion for step, _ in path)
            rate = f"{tokens / seconds:.3g} a second"
            return f"{name} wrote {tokens:,} of the path's {whole:,} tokens ({rate}): fewer of them, or a faster model"
    return f"{saved:.3g} s less without it: {why}"


def _explain_queue(trace: Trace, at: _StepTimes, seconds: float) -> str:
    worker = at.step.worker
    slots = next((host.slots for host in trace.hosts if host.name == worker), 0)
    own = sum(other.worker == worker and other.start < at.start and (other.end or at.start) > at.queued
              for other in trace.attempts)  # fmt: skip
    calls = f"{pluralise(own, 'other call')} of this run ran there" if own else "calls of other runs had them"
    remedy = "more slots or engines" if own else "another engine, or a higher fairness weight"
    return f"{at.step.name} waited {seconds:.3g} s for one of {worker}'s {slots} slots ({calls}): {remedy}"


def _explain_repeated_read(trace: Trace, at: _StepTimes, before: _StepTimes | None) -> str:
    tokens, worker = f"{at.step.name} read {at.again:,} {trace.unit} again", at.step.worker
    if before is None:
        return f"{tokens}: a cache that keeps them"
    if before.step.worker != worker:
        return f"{tokens} on {worker}, after {before.step.name} on {before.step.worker}: the policy `affinity`"
    if before.end > at.start:
        return f"{tokens} while {before.step.name} was reading them: start it after that one's first token"
    later = at.start - before.end
    return f"{tokens}, {later:.3g} s after {before.step.name} on {worker}: a larger cache, or the policy `working-set`"


def _explain_tool(timed: Mapping[str, _StepTimes], path: Sequence[tuple[str, Seconds]], at: _StepTimes) -> str:
    tools = {step: op.tool for step, _ in path if (op := timed[step].op) is not None and op.kind == "call"}
    tool = tools[at.step.step]
    spent = [uses.get("tools", 0.0) for step, uses in path if tools.get(step) == tool]
    remedy = f"a faster {tool}" + ", or its calls side by side" * (len(spent) > 1)
    return f"{pluralise(len(spent), 'call')} of {tool} took {sum(spent):.3g} s on the path: {remedy}"
