"""A run's trace as plain data: steps, attempts, workers and votes, with times in seconds after submission."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from ...core.budget import Budget
from ...core.events import Status
from ...core.ops import Join, ModelCall, Plugin
from ...core.record import StepRecord
from ...core.result import Failure, Usage
from ...core.values import as_text
from ...runtime.runlog import AttemptRecord, WorkerRecord


@dataclass(frozen=True, slots=True)
class AnswerVotes:
    """An answer of a vote, and the branches that gave it."""

    answer: str
    """The task's wording of the answer; empty for branches without an answer."""
    steps: tuple[str, ...]
    verified: bool | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A join's verdict."""

    step: str
    at: float | None
    """Time of the decision; `None` without a decision."""
    verdict: str
    why: str
    early: bool
    """Reached with branches still out."""
    ballots: tuple[AnswerVotes, ...]
    """Empty for a join that uses all branches and chooses none."""
    unheard: tuple[str, ...]
    """Branches that were not done when the verdict was reached."""


@dataclass(frozen=True, slots=True)
class Contact:
    """One step's use of a segment of the prefix tree, in units of the tree."""

    step: str
    cached: int
    """Read from the prefix cache."""
    computed: int
    """Prefilled, as part of its prompt."""
    generated: int


@dataclass(slots=True)
class Segment:
    """A node of the prefix tree: a part of the context shared by the same steps."""

    id: int
    parent: int | None
    start: int
    """Start within the context."""
    length: int
    contacts: list[Contact] = field(default_factory=list[Contact])
    text: str = ""
    """Its text, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Clock:
    """From the trace's time `at` on, the wall clock (Unix time in seconds) is `zero` plus the trace's time."""

    at: float
    zero: float
    exact: bool
    """False: known to the second only."""


@dataclass(slots=True)
class TracedRequest:
    """A run's request and its workers."""

    run: str
    text: str
    task: str
    planner: str
    policies: tuple[str, ...]
    budget: str
    seed: int
    clocks: tuple[Clock, ...]
    """Mapping of the times to the wall clock: one clock per session of the run, oldest first."""
    model: str = ""
    """Empty if unknown, for example with scripted replies."""
    server: str | None = None
    """Address of the model's server."""
    plait: str = ""


@dataclass(slots=True)
class Trace(TracedRequest):
    """One run."""

    seconds: float = 0.0
    """Duration from submission to the end or the last event."""
    status: Status | Literal["unfinished", "loading"] = "unfinished"
    """`loading`: its journal has not been read yet."""
    answer: str = ""
    verified: bool | None = None
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    critical_path_tokens: int = 0
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    attempts: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    waited_for: tuple[str, ...] = ()
    """The chain of steps, by id, that the end of the run waited for."""
    output: str | None = None
    """Id of the step whose value is the answer."""
    hosts: list[WorkerRecord] = field(default_factory=list[WorkerRecord])
    votes: list[Vote] = field(default_factory=list[Vote])
    segments: list[Segment] = field(default_factory=list[Segment])
    unit: Literal["tokens", "words"] = "tokens"
    """Unit of the prefix tree: words if the engine reported no token ids."""
    notes: list[str] = field(default_factory=list[str])
    """Notes for the reader about missing or uncertain parts of the trace."""
    others: int = 0
    """Number of other runs in the same journal."""

    def wall(self, at: float) -> float:
        """Return the Unix time, in seconds, of a time of this trace."""
        clock = next((clock for clock in reversed(self.clocks) if clock.at <= at), self.clocks[0])
        return clock.zero + at

    def step(self, id: str) -> StepRecord:
        """Return a step by id. Raises `KeyError`."""
        for step in self.steps:
            if step.step == id:
                return step
        raise KeyError(id)


_LEFT_OUT = ("op", "deltas", "counts", "result", "run")
"""Fields of an attempt that the record lacks or has in another form."""

_OPTION = 40
"""Characters of one option of a plugin that are shown."""


def record(trace: Trace) -> Any:
    """Return a trace as plain JSON."""
    shown = [field.name for field in dataclasses.fields(AttemptRecord) if field.name not in _LEFT_OUT]
    whole = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
    whole["steps"] = list(steps_in_detail(trace))
    whole["attempts"] = [
        {
            **{name: getattr(attempt, name) for name in shown},
            "progress": attempt.progress(),
            "usage": attempt.usage,
            "finish": "" if attempt.result is None else attempt.result.finish,
            "read": attempt.read,
        }
        for attempt in trace.attempts
    ]
    return to_jsonable_python(whole, inf_nan_mode="constants")


def steps_in_detail(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield each step as a dictionary."""
    known = {step.step: step for step in trace.steps}
    calls: dict[str, JsonValue] = {
        attempt.step: attempt.op.args for attempt in trace.attempts if attempt.op.kind == "call"
    }
    waited_for = set(trace.waited_for)
    for step in trace.steps:
        own = step.after_own and step.after is not None
        yield {
            "id": step.step,
            "name": step.name,
            "kind": step.kind,
            "label": step.label,
            "owner": step.owner,
            "needs": step.needs[:-1] if own else step.needs,
            "after": step.after,
            "entered": step.entered,
            "moves": [{"at": at, "state": state, "reason": reason} for at, state, reason in step.moves],
            "text": step.text,
            "value": as_text(step.output) if step.output != step.value else None,
            "why": step.why,
            "failure": None if step.failure is None else step.failure.model_dump(mode="json"),
            "usage": step.spent.model_dump(mode="json"),
            "tries": step.tries,
            "logprob": step.logprob,
            "signals": None if step.signals is None else step.signals.model_dump(mode="json"),
            "chain": step.step in waited_for,
            **_planned(step, known, calls.get(step.step)),
        }


def _planned(step: StepRecord, known: Mapping[str, StepRecord], args: JsonValue) -> dict[str, Any]:
    plan = step.plan
    assert plan is not None
    fields: dict[str, Any] = {
        "prompt": [],
        "tool": "",
        "args": None,
        "merge": "",
        "rule": "",
        "sampling": {},
        "expands": plan.expands,
        "side_effects": plan.side_effects,
        "budget": limits(plan.budget),
        "priority": plan.priority,
    }
    match plan.op:
        case ModelCall() as op:
            fields["prompt"] = list(_pieces(step, op, known))
            given = op.sampling.model_dump(mode="json", exclude_defaults=True)
            defaults = op.sampling.model_dump(mode="json", include={"max_tokens", "temperature"})
            fields["sampling"] = {**defaults, **given}
        case Join() as op:
            fields["merge"], fields["rule"] = named(op.merge), _rule(op)
        case op:
            fields["tool"], fields["args"] = op.tool, op.args if args is None else args
    return fields


def _pieces(step: StepRecord, op: ModelCall, known: Mapping[str, StepRecord]) -> Iterator[dict[str, Any]]:
    """Yield the pieces of a prompt: text, raw token ids, the value of another step, or the continued context (`own`:
    only the text that the continued step itself generated)."""
    piece: dict[str, Any] = {"kind": "text", "text": "", "tokens": 0, "step": None, "own": False}
    values = {known[need].name: known[need] for need in step.needs}
    if step.after is not None:
        yield {**piece, "kind": "context", "step": step.after, "own": step.after_own}
    for part in op.parts:
        match part.kind:
            case "text":
                yield {**piece, "text": part.text}
            case "tokens":
                yield {**piece, "kind": "tokens", "tokens": len(part.ids)}
            case "ref":
                need = values.get(part.step)
                text = as_text(need.output) if need is not None and need.state == "done" else ""
                yield {**piece, "kind": "value", "text": text, "step": need.step if need is not None else part.step}


def named(plugin: Plugin) -> str:
    """Return a plugin with its options, long ones cut."""
    if not plugin.options:
        return plugin.name
    options = ",".join(f"{key}={_short(value)}" for key, value in plugin.options.items())
    return f"{plugin.name}:{options}"


def _short(value: object) -> str:
    if isinstance(value, dict) and "name" in value:
        return str(value["name"])
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _OPTION else text[: _OPTION - 1] + "…"


def limits(budget: Budget | None) -> str:
    """Return a budget's limits as a text."""
    if budget is None:
        return ""
    return ", ".join(f"{key} {value:g}" for key, value in budget.limits.items())


def _rule(join: Join) -> str:
    parts = [join.on_failure if join.quorum is None else f"quorum of {join.quorum}"]
    if join.early:
        parts.append("early: closes as soon as the verdict is certain")
    if join.deadline is not None:
        parts.append(f"deadline {join.deadline:g} s")
    return ", ".join(parts)
