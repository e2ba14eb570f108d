"""The table of verbs: the queries and commands for active runs.

All callers that control a run use this table: the sockets of processes (and so `plait runs`), the REPL's commands,
`POST /runs/ID/VERB` of the server, and the tools of `plait mcp`.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from pydantic import JsonValue

from ...core.budget import Budget
from ...core.errors import UsageError
from ...core.interfaces import Worker, offer
from ...core.messages import did_you_mean
from ...core.record import StepRecord
from ...core.states import State
from ...core.tools.context import OPERATOR, Answerer, Question
from ..client.answer import RunEvent
from ..client.config import Config
from ..client.handle import Handle
from ..journal.directory import match_run

Right = Literal["look", "steer", "operate"]
"""The right that a verb needs: to see runs, to control one's own, or to change limits and processes."""
_LEVELS = ("debug", "info", "warning", "error")
_HEAD = 200
"""Most characters of a run's text in a list."""


class Steerable(Protocol):
    """An active run: a `Handle` of this process, or a run in a store that another process has."""

    @property
    def run(self) -> str: ...
    @property
    def steps(self) -> Sequence[StepRecord]: ...
    @property
    def questions(self) -> Sequence[Question]: ...
    def cancel(self, reason: str) -> None: ...
    def prune(self, step: str, reason: str) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def answer(self, question: str, value: JsonValue, by: Answerer) -> None: ...
    def limit(self, **limits: float | str | None) -> None: ...


@dataclass(frozen=True, slots=True)
class VerbArgument:
    """An argument of a verb, other than the run."""

    name: str
    about: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be asked of a process, or done to a run."""

    name: str
    about: str
    do: Callable[..., Any]
    """Takes the run (or the `Control` of the process, see `of_run`) and the arguments by name."""
    arguments: tuple[VerbArgument, ...] = ()
    right: Right = "steer"
    of_run: bool = True
    """Whether it is done to one run; if not, to the process."""
    past: str = ""
    """The run's new state, for messages, such as `paused`."""

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that are given. Raises `UsageError` for one too many, too few, or that is no text."""
        known = {argument.name: argument for argument in self.arguments}
        missing = [name for name, argument in known.items() if argument.required and name not in given]
        extra = [name for name in given if name not in known]
        if missing or extra:
            raise UsageError(f"{self.name} takes {', '.join(known) or 'nothing'}, and was given {', '.join(given)}")
        wrong = [name for name, value in given.items() if name != "value" and not isinstance(value, str)]
        if wrong:
            raise UsageError(f"{self.name}: {wrong[0]} has to be a text")
        return dict(given)


class Holder(Protocol):
    """What holds runs: an `AsyncOrchestrator`."""

    @property
    def config(self) -> Config: ...
    @property
    def workers(self) -> Sequence[Worker]: ...
    @property
    def runs(self) -> Mapping[str, Handle]: ...
    def resize(self, worker: str, slots: int | None = None) -> int: ...


class Control:
    """The runs of one orchestrator for the verbs; `sees` decides which of them a caller may see."""

    def __init__(self, orchestrator: Holder, sees: Callable[[str], bool] = lambda run: True) -> None:
        self._orchestrator, self._sees = orchestrator, sees
        self._began = time.time()

    def find(self, run: str | None, *, changes: bool = True) -> Handle:
        """Return the run with this id, or the only one whose id begins so; for `None` the only active one.
        `changes`: whether it is then changed. Raises `UsageError`."""
        runs = self._orchestrator.runs
        name = match_run(run, (name for name in runs if self._sees(name)), changes=changes)
        if name is None:
            which = "no run" if run is None else f"no run {run!r}"
            raise UsageError(f"there is {which} active: `plait runs list --live` shows the active runs")
        return runs[name]

    def process(self) -> dict[str, Any]:
        """Return the description of the process."""
        config = self._orchestrator.config
        names = [worker.name for worker in self._orchestrator.workers]
        workers = [{"name": name, "slots": self._orchestrator.resize(name)} for name in names]
        words = [word if len(word) < _HEAD else word[:_HEAD] + "…" for word in sys.argv[1:6]]
        return {"pid": os.getpid(), "began": self._began, "words": words, "worker": config.worker, "workers": workers}

    def list(self) -> list[dict[str, Any]]:
        """Return a row for each active run."""
        return [self.row(handle) for name, handle in self._orchestrator.runs.items() if self._sees(name)]

    def row(self, handle: Handle) -> dict[str, Any]:
        """Return a run's row in a list."""
        steps, request = handle.steps, handle.request
        states = [step.state for step in steps]
        return {
            "run": handle.run,
            "status": "paused" if handle.paused else "running",
            "text": request.text[:_HEAD],
            "planner": request.planner.name,
            "seconds": round(handle.now() - handle.began, 3),
            "steps": len(steps),
            "done": states.count("done"),
            "running": states.count("running"),
            "tokens": handle.tokens,
            "budget": handle.budget.model_dump(exclude_none=True),
            "questions": [question.model_dump(mode="json") for question in handle.questions],
        }

    def show(self, run: str | None = None) -> dict[str, Any]:
        """Return a run with all of its steps."""
        handle = self.find(run, changes=False)
        return {**self.row(handle), "steps": [step_row(step) for step in handle.steps]}

    async def watch(self, run: str | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the present state of a run, and then its events to the end."""
        async for news in self.find(run, changes=False).follow():
            yield news_row(news)

    def set(self, name: str, value: str, worker: str = "") -> None:
        """Change the `slots` of a worker (which may be left out where there is only one), or the `log_level`."""
        if name == "log_level":
            if value.lower() not in _LEVELS:
                raise UsageError(f"log_level={value!r} must be one of {', '.join(_LEVELS)}")
            logging.getLogger("plait").setLevel(value.upper())
            return
        if name != "slots":
            near = did_you_mean(name, ("log_level", "slots"))
            raise UsageError(f"{name!r} is nothing of a process{near}: log_level and slots are")
        there = [worker.name for worker in self._orchestrator.workers if "think" in offer(worker).serves]
        if not worker and len(there) != 1:
            raise UsageError(f"name the worker of the slots (workers: {', '.join(there) or 'none'})")
        if not value.isdecimal():
            raise UsageError(f"slots={value!r} must be a number of concurrent jobs")
        self._orchestrator.resize(worker or there[0], int(value))

    async def do(self, message: Mapping[str, Any], by: Answerer = OPERATOR) -> AsyncGenerator[dict[str, Any], None]:
        """Do what a message `{"do": verb, "run": …, …}` asks for, and yield the rows of its answer. `by`: who asks."""
        fields = {key: value for key, value in message.items() if key != "do"}
        name = message.get("do")
        verb = VERBS.get(name) if isinstance(name, str) else None
        if verb is None:
            raise UsageError(f"there is no verb {name!r}: there are {', '.join(VERBS)}")
        run = fields.pop("run", None) if verb.of_run else None
        if run is not None and not isinstance(run, str):
            raise UsageError(f"{verb.name}: run has to be a text")
        given = verb.checked(fields)
        if verb.name == "answer":
            given["by"] = by
        made = verb.do(self.find(run) if verb.of_run else self, **given)
        match made:
            case AsyncGenerator():
                async for row in cast("AsyncGenerator[dict[str, Any], None]", made):
                    yield row
            case list():
                for row in cast("list[dict[str, Any]]", made):
                    yield row
            case dict():
                yield cast("dict[str, Any]", made)
            case _:
                yield {"done": verb.name}


def _cancel(run: Steerable, reason: str = "") -> None:
    run.cancel(reason or "cancelled by the user")


def _prune(run: Steerable, step: str, reason: str = "") -> dict[str, Any]:
    steps = steps_named(run.steps, step)
    if not steps:
        raise UsageError(f"run {run.run} has no step {step!r}{did_you_mean(step, [step.path for step in run.steps])}")
    # Only a pattern may mean several: who writes a name means one step.
    if len(steps) > 1 and not any(sign in step for sign in "*?["):
        raise UsageError(f"{step!r} may be {', '.join(node.path for node in steps[:6])}: name one, or all by {step}*")
    live = [node for node in steps if not State(node.state).ended]
    if not live:
        raise UsageError(f"{', '.join(f'{node.path} is {node.state}' for node in steps[:6])}: too late to prune")
    for node in live:
        run.prune(node.step, reason or "pruned by the user")
    return {"done": "prune", "steps": [node.path for node in live]}


def _pause(run: Steerable) -> None:
    run.pause()


def _resume(run: Steerable) -> None:
    run.resume()


def _answer(run: Steerable, value: JsonValue, question: str = "", by: Answerer = OPERATOR) -> None:
    there = [question.id for question in run.questions]
    if not question and len(there) == 1:
        question = there[0]
    if question not in there:
        raise UsageError(f"run {run.run} has no open question {question!r}; open are: {', '.join(there)}")
    run.answer(question, value, by)


def _limit(run: Steerable, name: str, value: str) -> None:
    run.limit(**{name: limit_of(name, value)})


def limit_of(name: str, value: str) -> float | None:
    """Parse the value of one limit of a budget; `none` removes the limit. Raises `UsageError`, `FieldError`."""
    known = [field for field in Budget.model_fields if field != "strict"]
    if name not in known:
        raise UsageError(
            f"{name!r} cannot be set while a run runs{did_you_mean(name, known)}: {', '.join(known)} of its budget "
            "can, and `plait runs set` changes slots and log_level of a process; what a planner was given it keeps"
        )
    return None if value == "none" else getattr(Budget.of(f"{name}={value}"), name)


_RUN = VerbArgument("run", "A run's id, or a unique prefix of it; the only run if left out.")
_REASON = VerbArgument("reason", "Why, for those who read the run.")
VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("process", "Describe the process.", Control.process, (), "look", of_run=False),
        Verb("list", "List the active runs.", Control.list, (), "look", of_run=False),
        Verb("show", "Show one run with all of its steps.", Control.show, (_RUN,), "look", of_run=False),
        Verb("watch", "Follow a run to its end.", Control.watch, (_RUN,), "look", of_run=False),
        Verb("cancel", "Give a run up; its process prints what was done.", _cancel, (_REASON,), past="cancelled"),
        Verb(
            "prune", "Cancel some steps of a run; it continues without them.", _prune,
            (VerbArgument("step", "The step's name; child-*: all such steps.", required=True), _REASON), past="pruned",
        ),
        Verb("pause", "Pause a run; running steps continue.", _pause, past="paused"),
        Verb("resume", "Start steps again after `pause`.", _resume, past="resumed"),
        Verb(
            "answer", "Answer what a tool of a run asks.", _answer,
            (VerbArgument("value", "One of its choices, a text, or JSON.", required=True),
             VerbArgument("question", "Its id, where several are open.")), past="answered",
        ),
        Verb(
            "limit", "Change a limit of a run: width, tokens, seconds, …", _limit,
            (VerbArgument("name", "Of the limit.", required=True),
             VerbArgument("value", "`none` takes the limit away.", required=True)), "operate", past="limited",
        ),
        Verb(
            "set", "Change the slots of a worker, or the log level of processes.", Control.set,
            (VerbArgument("name", "slots or log_level.", required=True), VerbArgument("value", "A number; a level.",
             required=True), VerbArgument("worker", "Whose slots, where there are several.")), "operate", of_run=False,
        ),
    )
}  # fmt: skip


def steps_named(steps: Iterable[StepRecord], pattern: str) -> list[StepRecord]:
    """Return the steps that are meant by an id (with or without its run), a name, the end of one, or a pattern with
    `*` and `?`; the first of these that fits any."""
    there = list(steps)
    ways: tuple[Callable[[StepRecord], bool], ...] = (
        lambda record: record.step == pattern,
        lambda record: record.path == pattern,
        lambda record: record.name == pattern,
        lambda record: record.path.endswith("/" + pattern),
        lambda record: fnmatch.fnmatchcase(record.name, pattern) or fnmatch.fnmatchcase(record.path, pattern),
    )
    for same in ways:
        match = [record for record in there if same(record)]
        if match:
            return match
    return []


def step_row(step: StepRecord) -> dict[str, Any]:
    """Return a step as JSON."""
    return {
        "step": step.step,
        "name": step.path,
        "op": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "tries": step.tries,
        "reason": step.reason,
        "cause": step.cause,
        "needs": list(step.needs),
        "owner": step.owner,
    }


def news_row(news: RunEvent) -> dict[str, Any]:
    """Return a run event as JSON."""
    head = {"kind": news.kind, "at": round(news.at, 6)}
    match news.kind:
        case "step":
            return {**head, **step_row(news.record)}
        case "text":
            return {**head, "step": news.step, "text": news.text, "tokens": news.tokens}
        case "ask":
            return {**head, "question": news.question.model_dump(mode="json")}
        case _:
            return {**head, **news.answer.summary()}
