"""The answer of a run, its report, and the run's events.

Plain, serializable data."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, InstanceOf, JsonValue, PlainSerializer, PlainValidator

from ...core.chat import Message, assistant_message
from ...core.errors import CutInForm, CutInThoughts, OutcomeUnknown, RunFailed, TaskError
from ...core.events import Status
from ...core.form import ADAPTERS, Form
from ...core.notebook_html import bar, escape_text, table
from ...core.ops import Kind
from ...core.plan import Plan
from ...core.provenance import Provenance
from ...core.record import StepRecord, steps_table
from ...core.request import Request
from ...core.result import NO_USAGE, Failure, Finish, Token, Usage, as_failure
from ...core.task import Task
from ...core.tools.context import Question
from ...core.values import Frozen, as_text, split_reasoning
from ..runlog import RunRecord

_SHOWN, _ROWS = 200, 10
"""Maximum characters of an answer in `repr` and in a notebook, and maximum steps in a notebook."""
_VERDICTS = {True: ", verified", False: ", wrong", None: ""}


def _read_steps(rows: Iterable[StepRecord | Mapping[str, Any]]) -> tuple[StepRecord, ...]:
    return tuple([row if isinstance(row, StepRecord) else StepRecord.read(row) for row in rows])


def _step_rows(steps: tuple[StepRecord, ...]) -> list[dict[str, JsonValue]]:
    return [step.row() for step in steps]


@dataclass(frozen=True, slots=True)
class CriticalPathSegment:
    """A segment of the critical path, the chain of steps that determined the end of the run."""

    step: str
    waited: float
    """Seconds in the queue, or between the end of the last need and the ready state."""
    ran: float
    """Seconds on a worker (for an expanded step: of its own attempt)."""
    kind: Kind


class Report(Frozen):
    """The costs of a run."""

    usage: Usage = NO_USAGE
    critical_path_tokens: int = 0
    """Most generated tokens along any chain of steps that the answer was made from."""
    seconds: float = 0.0
    """Wall-clock from submission to the end."""
    waited_for: tuple[CriticalPathSegment, ...] = ()
    """The critical path, first step to last; its times add up to nearly `seconds`."""
    steps: Annotated[tuple[StepRecord, ...], PlainValidator(_read_steps), PlainSerializer(_step_rows)] = ()

    def __repr__(self) -> str:
        return f"<{len(self.steps)} steps, {self.usage.completion} tokens, {self.seconds:.2f} s>"

    def time_by(self) -> dict[str, float]:
        """Return the wall-clock time by use, in seconds: model, tools, queue, and the rest (planning, transport)."""
        model = sum(spell.ran for spell in self.waited_for if spell.kind == "think")
        tools = sum(spell.ran for spell in self.waited_for if spell.kind == "call")
        queue = sum(spell.waited for spell in self.waited_for)
        rest = max(0.0, self.seconds - model - tools - queue)
        return {"model": model, "tools": tools, "queue": queue, "other": rest}


_NO_REPORT = Report.model_construct(set())


class Answer(Frozen):
    """The outcome of a run. A failed run also gives an answer; only `unwrap` raises."""

    run: str
    """Id of the run."""
    status: Status
    """`done`; `partial`: a budget or deadline cut a result; `failed`; `cancelled`: the user cancelled the run."""
    answer: JsonValue = None
    """The answer that the task extracts from the output's text, or `None`."""
    verified: bool | None = None
    """Whether the answer is correct according to the task; `None` if the task cannot check."""
    value: JsonValue = None
    """The unchanged value of the output step."""
    json_text: str = ""
    """The model's raw text of a JSON value, if one model call wrote it."""
    why: str = ""
    """Reason for the choice among several answers, if any."""
    data: JsonValue = None
    """Measurements behind the choice, for programs: `Verdict.data` of a merge or planner."""
    finish: Finish | None = None
    """Finish reason of the output's text: `stop`, or `length` at the token limit; `None` without an output."""
    failure: Failure | None = None
    """Why the answer is missing or partial; `failure.usage` is the run's usage."""
    partial: dict[str, JsonValue] = {}
    """Values of finished steps by step id, if the run has no value."""
    output: Any = None
    """The answer in the requested type (`Request.output`)."""
    reasoning: str = ""
    """The model's reasoning before the output: a block `<think>…</think>`, or a server's separate field."""
    tokens: tuple[Token, ...] = ()
    """The output's tokens with their log-probabilities, if `top_logprobs` asked for them and one call wrote it."""
    anew: tuple[str, ...] = ()
    """Why parts of a conversation were rendered again instead of continued token for token."""
    report: Report = _NO_REPORT
    plan: Plan | None = None
    """The planner's first plan. Expansions of steps are in `trace`."""

    made_of: Callable[[], Provenance] | None = Field(default=None, exclude=True, repr=False)
    """Builds its provenance on demand."""

    def __eq__(self, other: object) -> bool:
        """Compare all fields except `made_of`: an unpickled answer equals the original, but functions do not."""
        if not isinstance(other, Answer):
            return NotImplemented
        return Frozen.__eq__(*(one.model_copy(update={"made_of": None}) for one in (self, other)))

    __hash__ = Frozen.__hash__

    @property
    def outcome(self) -> str:
        """How the run ended: `status`, or `no answer` if it is done and its text has none."""
        return "no answer" if self.status == "done" and self.answer is None else self.status

    @property
    def provenance(self) -> Provenance | None:
        """The answer's dependencies apart from the question: models, tools, planner and options, seed, version. `None`
        for an answer from a journal."""
        return None if self.made_of is None else self.made_of()

    @property
    def trace(self) -> tuple[StepRecord, ...]:
        """The records of all steps, expansions included, in the order in which they entered the plan: worker, times,
        cost, final state and reason. `plait runs view` draws the trace."""
        return self.report.steps

    @property
    def unknown(self) -> tuple[str, ...]:
        """Ids of the steps with an unknown side effect: the process ended during the tool's call."""
        return tuple(row.step for row in self.trace if row.error == OutcomeUnknown.code)

    def explain(self) -> str:
        """Explain the answer to a person in a few lines: the choice and its reason, the outcome of every step, and the
        cost. Programs use `summary` and `report`.

        >>> print(Answer(run="r1", status="cancelled", why="given up by its owner").explain())
        run r1: cancelled, no answer
        given up by its owner
        0.00 s, 0 tokens generated, 0 on the critical path
        """
        lines = [f"run {self.run}: {self._describe_end()}"]
        lines += [self.why] if self.why else []
        failed = f"{self.failure.kind}: {self.failure.message}" if self.failure is not None else ""
        lines += [failed] if failed else []
        lines += [f"unknown whether it took effect: {step}" for step in self.unknown]
        depth: dict[str, int] = {}
        for row in self.trace:
            depth[row.step] = 1 if row.owner is None else depth.get(row.owner, 0) + 1
            tokens = f", {row.tokens} tokens" if row.tokens else ""
            tries = f", {row.tries} tries" if row.tries > 1 else ""
            reason = f": {row.reason}" if row.reason not in ("", self.why, failed) else ""
            lines.append(f"{'  ' * depth[row.step]}{row.name} {row.state}{tokens}{tries}{reason}")
        return "\n".join([*lines, self._cost()])

    def _describe_end(self) -> str:
        if self.answer is None:
            return self.outcome if self.status == "done" else f"{self.status}, no answer"
        return f"{self.status}, answer {as_text(self.answer)!r}{_VERDICTS[self.verified]}"

    def _cost(self) -> str:
        reused = f", {self.usage.reused} taken from the result cache" if self.usage.reused else ""
        cancelled = f", {self.usage.cancelled} of them wasted" if self.usage.cancelled else ""
        usage = self.usage
        least = "about " if usage.uncounted else ""
        return (
            f"{self.seconds:.2f} s, {least}{self.total_tokens} tokens generated{cancelled}{reused}, "
            f"{self.critical_path_tokens} on the critical path" + (f", cost {usage.cost:.6g}" if usage.cost else "")
        )

    def __repr__(self) -> str:
        text = self._describe_end()
        text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return f"<run {self.run}: {text}; {self.total_tokens} tokens, {self.seconds:.2f} s>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the answer and its reason, the branches, the tree of steps, and the cost."""
        text = self.text if self.answer is None else as_text(self.answer)
        fault = "" if self.failure is None else f"<br>{escape_text(self.failure.message)}"
        head = f"<b>{escape_text(text)}</b><br>{self.outcome}{_VERDICTS[self.verified]}. {escape_text(self.why)}{fault}"
        steps = f"<details open><summary>{escape(self._cost())}</summary>{steps_table(self.trace)}</details>"
        return f"<div><p>{head}</p>{self._votes()}{steps}</div>"

    def _votes(self) -> str:
        """Return the last join's answers with their numbers of branches, most frequent first; empty without a join."""
        records = {record.step: record for record in self.trace}
        join = next((record for record in reversed(self.trace) if record.kind == "join" and record.needs), None)
        texts = Counter(
            as_text(records[step].output).strip().rpartition("\n")[2]
            for step in (() if join is None else join.needs)
            if step in records and records[step].output is not None
        )
        if len(texts) < 1 or join is None or len(join.needs) < 2:
            return ""
        rows = [
            (escape_text(text), bar(0, count, texts.total()), str(count)) for text, count in texts.most_common(_ROWS)
        ]
        return table(("last line of a branch", "", "branches"), rows)

    @property
    def usage(self) -> Usage:
        """Tokens of all attempts: prompt, cached, completion, cancelled."""
        return self.report.usage

    @property
    def text(self) -> str:
        """The output as text."""
        return self.value if isinstance(self.value, str) else "" if self.value is None else str(self.value)

    @property
    def cut(self) -> bool:
        """Whether a limit has cut or prevented the output."""
        return self.finish == "length" or self.status == "partial" or self.value is None

    @property
    def at_length(self) -> bool:
        """Whether the value is missing because the token limit cut the text within its form or its reasoning. OpenAI's
        clients do not treat this case as an error."""
        return self.failure is not None and self.failure.code in (CutInForm.code, CutInThoughts.code)

    @property
    def written(self) -> str:
        """The output as text, also if the token limit cut its form."""
        if self.value is None and self.failure is not None and self.failure.code == CutInForm.code:
            return as_text(next(reversed(self.partial.values()), ""))
        return "" if self.value is None else self.json_text or as_text(self.value)

    @property
    def message(self) -> Message:
        """The output as an assistant's message with separate text, function calls and reasoning."""
        if self.value is None and self.at_length:
            return Message(role="assistant", content=self.written)
        if self.value is not None and not isinstance(self.value, str):
            reasoning, content = split_reasoning(self.written)
            return Message(role="assistant", content=content.strip(), reasoning=self.reasoning or reasoning)
        message = assistant_message(self.text, of=self.run)
        fields = {"reasoning": self.reasoning or message.reasoning, "said": ""}
        return message.model_copy(update=fields)

    @property
    def critical_path_tokens(self) -> int:
        """Most generated tokens along any chain of steps that the answer was made from."""
        return self.report.critical_path_tokens

    @property
    def total_tokens(self) -> int:
        """Generated tokens of all attempts, with the reported tokens of cancelled ones (`Usage.uncounted`)."""
        return self.report.usage.completion

    @property
    def seconds(self) -> float:
        """Wall-clock of the run."""
        return self.report.seconds

    def unwrap(self) -> JsonValue:
        """Return the answer, or the output's value if the task extracts no answer; raise `RunFailed` without either."""
        if self.failure is not None and self.value is None:
            raise RunFailed(self.failure)
        return self.value if self.answer is None else self.answer

    def summary(self) -> dict[str, JsonValue]:
        """Return the fields that `plait run --json` prints."""
        usage = self.usage
        return {
            "answer": self.answer,
            "status": self.outcome,
            "verified": self.verified,
            "usage": {
                "prompt": usage.prompt,
                "cached": usage.cached,
                "completion": usage.completion,
                "cancelled": usage.cancelled,
                **({"cost": usage.cost} if usage.cost else {}),
                **({"reused": usage.reused} if usage.reused else {}),
                **({"thoughts": usage.thoughts} if usage.thoughts else {}),
                **({"uncounted": usage.uncounted} if usage.uncounted else {}),
                **({"uncounted_prompt": usage.uncounted_prompt} if usage.uncounted_prompt else {}),
                "sources": usage.sources.model_dump(),
            },
            "critical_path_tokens": self.critical_path_tokens,
            "total_tokens": self.total_tokens,
            "seconds": round(self.seconds, 4),
            "run": self.run,
            "why": self.why,
            "error": None if self.failure is None else f"{self.failure.kind}: {self.failure.message}",
            "partial": self.partial,
        }


def typed(answer: Answer, form: Form) -> Answer:
    """Return an answer with its value in the requested type, or as plain JSON if this process lacks the type."""
    if answer.failure is not None or answer.value is None or answer.message.tool_calls:
        return answer
    adapter = ADAPTERS.get(form.key)
    if adapter is None:
        return answer.model_copy(update={"output": answer.value, "answer": answer.value})
    try:
        output = adapter.validate_json(json.dumps(answer.value))
    except Exception as error:  # pydantic's, or a validator of the user's own
        reason = str(error).strip().partition("\n")[0]
        failure = as_failure(TaskError(f"the answer is not of the type that was asked for: {reason}"))
        return answer.model_copy(update={"failure": failure, "status": "failed"})
    return answer.model_copy(update={"output": output, "answer": answer.value})


class StepEvent(Frozen):
    """A step entered the plan or moved."""

    kind: Literal["step"] = "step"
    at: float
    """Seconds after the run began."""
    record: InstanceOf[StepRecord]
    """The step as it then was."""
    answer: bool = False
    """Whether its text is the answer's; see `TextDelta`."""


class TextDelta(Frozen):
    """A step generated more text."""

    kind: Literal["text"] = "text"
    at: float
    step: str
    """Step id of the branch."""
    name: str = ""
    """The step's name, such as `sample-2`."""
    label: str = ""
    """Short description."""
    text: str
    tokens: int
    logprob: float | None = None
    """Mean log-probability (nats) of the tokens of this text, if asked for."""
    attempt: int = 0
    """The attempt that generated the text. Each attempt at a step starts a new text."""
    reasoning: str = ""
    """Reasoning that the server sends separately, before the text."""
    answer: bool = False
    """Whether the text is part of the answer. An agent's turn is part of the answer until the turn calls a tool."""


class RunEnded(Frozen):
    """The run is over. Always the last."""

    kind: Literal["answer"] = "answer"
    at: float
    answer: Answer


class ApprovalRequested(Frozen):
    """A tool asks a person: answer with `Handle.answer(news.question.id, …)`. Not sent if the run has `on_ask`."""

    kind: Literal["ask"] = "ask"
    at: float
    question: Question


RunEvent = StepEvent | TextDelta | ApprovalRequested | RunEnded
Mode = Literal["step", "text", "ask", "answer"]
"""A kind of event."""


# -- the report of a record ---------------------------------------------------------------------------------------


def report(run: RunRecord) -> Report:
    """Return the report of a run, as far as it has come."""
    steps, finish, output = run.steps, run.finish, run.output
    fields = {
        "usage": NO_USAGE if finish is None else finish.usage,
        "critical_path_tokens": 0 if finish is None else finish.critical_path_tokens,
        "seconds": run.seconds,
        "waited_for": () if output is None else _waited_for(steps, output),
        "steps": steps,
    }
    return _NO_REPORT.model_copy(update=fields)


def _waited_for(steps: Sequence[StepRecord], output: str) -> tuple[CriticalPathSegment, ...]:
    """Return the chain from the output backwards: for each step, the need that ended last before its start."""
    known = {step.step: step for step in steps}
    expanded = {step.owner for step in steps}
    spells: list[CriticalPathSegment] = []
    seen: set[str] = set()
    entered: set[str] = set()
    step = known.get(output)
    while step is not None and step.step not in seen:
        if step.source is not None and step.step not in entered:
            entered.add(step.step)  # its own attempt may follow, before its expansion
            step = known[step.source]
            continue
        seen.add(step.step)
        ready, started, left = _attempt(step)
        if ready is not None and started is not None:
            spells.append(CriticalPathSegment(step.step, started - ready, max(0.0, left - started), step.kind))
        own = step.after if step.after_own else None
        last: StepRecord | None = None
        at = 0.0
        for name in step.needs:
            need = known[name]
            if name == own or (need.state == "done" and name not in seen):
                end = _attempt(need)[2] if name in expanded else need.moves[-1][0]
                if last is None or end > at:
                    last, at = need, end
        step = known[step.owner] if last is None and step.owner is not None else last
    return tuple(reversed(spells))


def _attempt(step: StepRecord) -> tuple[float | None, float | None, float]:
    """Return the times when a step was last ready, last sent to a worker, and when this attempt ended (before its
    expansion; 0 without an attempt)."""
    ready: float | None = None
    started: float | None = None
    left, before = 0.0, ""
    for at, state, _ in step.moves:
        if before == "running":
            left = at
        if state == "ready":
            ready = at
        elif state == "running":
            started = at
        before = state
    return ready, started, left


class Lessons(Protocol):
    """Lets planners learn from ended runs. plait-research has the implementation."""

    def follow(self, request: Request, task: Task, finished: asyncio.Future[Answer]) -> None:
        """Have a run's planner learn when the run has ended."""
        ...

    async def feedback(self, run: str, right: float) -> bool:
        """Rate the answer of an ended run, from 0 (wrong) to 1 (right); return whether its planner learned from it."""
        ...

    async def counted(self, run: str) -> bool:
        """Return whether a planner has learned from a run, after the feedback is written."""
        ...

    async def settled(self, path: JsonValue = None) -> None:
        """Wait until the feedback of ended runs is written to one path, or to all paths."""
        ...
