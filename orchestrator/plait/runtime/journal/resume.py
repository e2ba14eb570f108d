"""Resumes a run whose process ended.

`rebuild` makes a machine from the journal's events, which contain all output of planners and workers. `rule` decides
about the live attempts, `settle` ends these attempts, and then the driver's machine adopts the run (`Machine.adopt`). A
lost attempt is retried as after the loss of a worker. The exception is a call with side effects that may have happened:
it is repeated only if the policy or a person decides so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError, Interrupted, NeverMade, OutcomeUnknown, UsageError
from ...core.events import (
    Action,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    Submitted,
    Succeeded,
    WorkerDown,
)
from ...core.flow import Flow, is_root
from ...core.interfaces import Planner, PlanningContext, PluginRegistry, Worker
from ...core.plan import Step
from ...core.provenance import check
from ...core.result import Result, as_failure
from ...core.states import State
from ...core.task import Task
from ...core.tools.context import GivenAnswer, Question
from ...core.tools.tool import ToolSpec
from ...machine import Machine, Node, Run
from ..client.config import Config
from ..client.questions import OnQuestion, QuestionQueue
from ..driver.driver import Driver, arrival
from ..driver.expander import Expander, heard_at
from ..driver.flows import FlowRecord
from ..plugins.loader import Plugins
from ..runlog import RunLog, RunRecord
from .directory import RunEntry, find, new_file, place, tidy
from .journal import Journal
from .location import Database, Location
from .recorded_actions import of_runs, ordered
from .replay import Growing, Moment
from .tables import Header, Note
from .writer import Recorder

__all__ = ["JournalSink", "Rebuilt", "Resumer", "RunClaim", "RunEntry", "place", "settings_of"]


OnUncertainSideEffect = Literal["fail", "ask", "retry"]
"""Policy for a call with side effects that was running when the process ended: the step fails, a person decides, or the
call is repeated."""

AGAIN, TREAT_AS_DONE, GIVE_UP = "make it again", "it was made", "fail"


@dataclass(slots=True)
class Rebuilt:
    """A run as its journal leaves it."""

    path: Location
    machine: Machine
    header: Header
    submitted: Submitted
    last: int
    """Number of its last event."""
    log: RunLog
    """Follows the run."""
    record: RunRecord
    notes: list[Note] = field(default_factory=list[Note])
    trails: dict[str, list[FlowRecord]] = field(default_factory=dict[str, list["FlowRecord"]])
    """Events of the run's flows, by the ids of the flows' steps."""

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.submitted.run

    @property
    def answers(self) -> dict[str, tuple[JsonValue, GivenAnswer]]:
        """Questions to people and their answers, by the question's id. Two different open questions under one id have
        no answer, because it is unknown which one was answered. An answer without an answerer is omitted too."""
        asked: dict[str, list[JsonValue]] = {}
        answers: dict[str, tuple[JsonValue, GivenAnswer]] = {}
        for note in self.notes:
            if note.kind == "asked":
                asked.setdefault(note.step, []).append(note.note)
            elif note.kind == "answered":
                answers.pop(note.step, None)
                first, *others = asked.pop(note.step, [None])
                if first is not None and all(other == first for other in others):
                    with contextlib.suppress(ValidationError):
                        answers[note.step] = first, GivenAnswer.model_validate(note.note)
        return answers

    def follow(self, moment: Moment) -> None:
        """Add one event to the run's record and to the trails of the affected flows."""
        self.last = moment.seq
        self.log.take(moment.event, moment.machine, moment.actions)
        self.record.now = moment.machine.now
        for action in moment.actions:
            if isinstance(action, Expand) and action.step.partition(":")[0] == self.run:
                node = moment.machine.nodes.get(action.step)
                if node is not None and is_root(node.step):
                    self.trails.setdefault(action.step, [])
        for root, trail in self.trails.items():
            heard = heard_at(root, moment.event, moment.machine, moment.actions)
            trail += [heard] if heard is not None else []

    @property
    def nodes(self) -> Sequence[Node]:
        """The records of its steps."""
        return self.record.records.nodes if self.record.records is not None else ()


def rebuild(path: Location, run: str, plugins: PluginRegistry) -> Rebuilt:
    """Rebuild a run from its journal.

    Raises `ConfigError` for an unreadable file or run, and for a journal whose recorded actions differ from this
    machine's: the attempts would differ.
    """
    return Rebuilder(path, run, plugins).look(whole=True)


class Rebuilder:
    """Rebuilds a run that may be active, repeatedly: each call reads the events since the previous call."""

    def __init__(self, path: Location, run: str, plugins: PluginRegistry) -> None:
        self.path, self.run, self._plugins = path, run, plugins
        self._history = Growing(path, plugins, run)
        self._rebuilt: Rebuilt | None = None

    def look(self, *, whole: bool = False) -> Rebuilt:
        """Return the current run: the same object, updated, or a new object if the journal had to be read from its
        start. `whole` as in `Growing.moments`. Raises `ConfigError` as `rebuild` does."""
        if self._rebuilt is None or self._rebuilt.record.finish is None:
            for moment in self._history.moments(whole=whole):
                self._take(moment)
                if self._rebuilt is not None and self._rebuilt.record.finish is not None:
                    break
        if self._rebuilt is None and not whole:  # the run was just submitted, and its first actions are not written yet
            return Rebuilder(self.path, self.run, self._plugins).look(whole=True)
        if self._rebuilt is None:
            raise ConfigError(f"{self.path} holds no run {self.run!r}")
        self._rebuilt.notes = Journal(self.path).notes(self.run)
        return self._rebuilt

    def _take(self, moment: Moment) -> None:
        path, run, rebuilt = self.path, self.run, self._rebuilt
        if moment.differs and ordered(moment.recorded) != ordered(moment.anew):
            raise ConfigError(
                f"run {run} cannot be resumed: from event {moment.seq} of {path} on this version of plait decides "
                f"otherwise than {moment.header.plait}, which wrote it (`plait runs replay` shows how)"
            )
        if rebuilt is not None and rebuilt.machine is not moment.machine:
            rebuilt = self._rebuilt = None
        if isinstance(moment.event, Submitted) and moment.event.run == run and rebuilt is None:
            event, log = moment.event, RunLog([run])
            record = log.runs[run] = RunRecord(run, event.at, event.request, event.plan)
            rebuilt = Rebuilt(path, moment.machine, moment.header, event, moment.seq, log, record)
            self._rebuilt = rebuilt
        if rebuilt is not None:
            rebuilt.follow(moment)


async def rule(
    rebuilt: Rebuilt,
    workers: Collection[str],
    policy: OnUncertainSideEffect,
    ask: Callable[[Question], Awaitable[JsonValue]],
) -> list[Event]:
    """Decide about the live attempts, and return an event for each.

    All attempts count as lost with their process. A call with side effects is repeated if it had not begun, or if
    `policy` or a person decides so.
    """
    at = rebuilt.machine.now
    intended = {note.attempt for note in rebuilt.notes if note.kind == "intent"}
    events: list[Event] = []
    for attempt in rebuilt.machine.attempts.values():
        step = attempt.node.step
        if attempt.node.run.id != rebuilt.run:
            continue
        if not step.side_effects or attempt.state != "live":
            error: Exception = Interrupted("the process that ran this step ended")
        elif attempt.worker.name not in workers:
            error = _unknown(step, attempt.node.id, "its worker no longer exists")
        elif attempt.id not in intended or _waits_for_approval(rebuilt, attempt.node.id):
            error = NeverMade("the process ended before this call was made")
        else:
            ruling = AGAIN if policy == "retry" else GIVE_UP
            if policy == "ask":
                ruling = await ask(_question(rebuilt, attempt.id, attempt.node.id))
            if ruling == TREAT_AS_DONE:
                result = Result(why="taken as done by a person: what it returned is not known")
                events.append(Succeeded(at=at, attempt=attempt.id, result=result))
                continue
            error = NeverMade("the process ended during this call, which may be made again")
            if ruling != AGAIN:
                remedy = "find out, and resume with on_uncertain_side_effect=retry if it may be made again"
                error = _unknown(step, attempt.node.id, remedy)
        events.append(Failed(at=at, attempt=attempt.id, failure=as_failure(error)))
    return events


def _waits_for_approval(rebuilt: Rebuilt, step: str) -> bool:
    """Return whether a call still waited for a person's approval."""
    kinds = [note.kind for note in rebuilt.notes if note.step == f"{step}?approve"]
    return bool(kinds) and kinds[-1] == "asked"


def settle(
    rebuilt: Rebuilt, workers: Sequence[Worker], expander: Expander, ruling: Sequence[Event]
) -> Iterator[tuple[Event, list[Action]]]:
    """End the live attempts of a rebuilt machine; yield each event and the actions that followed.

    Afterwards the run has no live attempt, and has the planner's patches for all ended steps. The machine that adopts
    the run starts new attempts.
    """
    machine, at = rebuilt.machine, rebuilt.machine.now
    there = {worker.name for worker in workers}
    gone = [name for name in machine.workers if name not in there]
    events: deque[Event] = deque((*ruling, *_read_again(rebuilt, expander, at)))
    events += [arrival(worker, at) for worker in workers]
    events += [WorkerDown(at=at, worker=name) for name in gone]
    while events:
        event = events.popleft()
        actions = machine.follow(event, [])
        rebuilt.log.take(event, machine, actions)
        yield event, actions
        for action in actions:
            if isinstance(action, Expand) and action.step.rpartition(":")[0] == rebuilt.run:
                events.extend(expander.expand(action, machine, at))
        if expander.flows:
            events.extend(expander.collect_events(machine, at))


def _read_again(rebuilt: Rebuilt, expander: Expander, at: float) -> list[Event]:
    """Return the missing patches of steps that have ended before their readers had returned everything.

    A reader returns the same patches for any division of its text. It therefore gets the whole text at once, and
    existing patches are skipped.
    """
    events: list[Event] = []
    for node in rebuilt.nodes:
        if node.state is not State.EXPANDING or node.outcome.own is None:
            continue
        op = node.step.op
        if node.id in rebuilt.trails and expander.is_flow(node.step, rebuilt.run):
            action = Expand(step=node.id, attempt=node.attempts.generation, result=node.outcome.own)
            events += expander.replay_flow(action, rebuilt.machine, rebuilt.trails[node.id], at)
            continue
        read: list[Event] = []
        if op.kind == "think" and op.stream and node.outcome.own.text:
            action = Expand(step=node.id, attempt=node.attempts.generation, delta=node.outcome.own.text)
            read += expander.expand(action, rebuilt.machine, at)
        action = Expand(step=node.id, attempt=node.attempts.generation, result=node.outcome.own)
        read += expander.expand(action, rebuilt.machine, at)
        known = node.inner.names if node.inner is not None else {}
        events += [_without(event, known) if isinstance(event, Expanded) else event for event in read]
    return events


def _without(event: Expanded, known: Mapping[str, Node]) -> Expanded:
    """Return an event without the patch's steps that the plan already contains."""
    patch = event.patch
    if patch is None or not any(step.name in known for step in patch.steps):
        return event
    new = tuple(step for step in patch.steps if step.name not in known)
    if not new and patch.output is None:
        return replace(event, patch=None)
    return replace(event, patch=patch.model_copy(update={"steps": new}))


def _unknown(step: Step, id: str, remedy: str) -> OutcomeUnknown:
    tool = step.op.tool if step.op.kind == "call" else step.name
    return OutcomeUnknown(
        f"the process ended during a call of tool {tool!r}, which has side effects, for {id}, and whether it was made "
        f"is unknown: {remedy}"
    )


def _question(rebuilt: Rebuilt, attempt: int, step: str) -> Question:
    live = rebuilt.log.live.get(attempt)
    what = "a call"
    if live is not None and (op := live.op).kind == "call":
        what = f"{op.tool}({', '.join(f'{key}={value!r}' for key, value in op.args.items())})"
    text = f"The process ended during {what}, which has side effects. Was it made?"
    name = f"{step}?outcome-{attempt}"
    return Question(id=name, run=rebuilt.run, step=step, text=text, choices=(AGAIN, TREAT_AS_DONE, GIVE_UP))


# Chooses the journal that an orchestrator writes to, and takes runs out of journals to resume them.


log = logging.getLogger("plait.journal")

ROTATE_BYTES = 64 << 20
"""Size from which on new runs go to another file."""


class JournalSink:
    """An orchestrator's journals: one file, or a sequence of files in a folder."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tidied = False
        self.off = config.journal == "off"
        """Nothing is written."""
        self.facts: dict[str, JsonValue] = {}
        """Record of the started models and tools in a session's header."""

    def next_file(self, journal: Journal) -> Journal | None:
        """Return another journal for new runs if this one is full. Raises `ConfigError`."""
        return self._opened() if self._in_folder and journal.size > ROTATE_BYTES else None

    @cached_property
    def _in_folder(self) -> bool:
        """Whether there is room for another journal beside the first."""
        return not isinstance(self._config.journal, Path) or self._config.journal.is_dir()

    def check(self, recorder: Recorder) -> None:
        """Check a named journal early. Raises `ConfigError` for an invalid one.

        The first run opens the journal; until then, one of the journal's own runs can be resumed.
        """
        if recorder.current is None and isinstance(self._config.journal, Path) and not self._in_folder:
            with Journal(self._config.journal):
                pass
        if isinstance(self._config.journal, Database):
            Journal(self._config.journal).sessions()

    def open(self, recorder: Recorder) -> None:
        """Open the journal for a first run. Raises `ConfigError` for a named journal; an error of the default journal
        is only logged."""
        if self.off or recorder.current is not None:
            return
        try:
            recorder.use(self._opened())
        except ConfigError as error:
            if isinstance(self._config.journal, Path | Database):
                raise
            log.warning("runs are not written down: %s", error)
            self.off = True

    def _opened(self) -> Journal:
        chosen = place(self._config)
        if isinstance(chosen, Database) or not self._in_folder:
            return Journal(chosen).open(meta=self.meta(), lease=self._config.lease)
        path = new_file(chosen)
        if not isinstance(self._config.journal, Path) and not self._tidied:
            self._tidied = True
            with contextlib.suppress(OSError):
                tidy(chosen)
        return Journal(path).open(meta=self.meta(), lease=self._config.lease)

    def meta(self) -> dict[str, JsonValue]:
        """Return the metadata of a session: model, settings (no secrets), and the wall clock."""
        config = self._config
        settings = config.model_dump(mode="json", exclude_unset=True, exclude={"allow", "journal", "log_level"})
        if config.base_url is not None:
            settings["base_url"] = re.sub(r"//[^/@]*@", "//", config.base_url)
        with contextlib.suppress(OSError):
            for key in ("script", "tools", "model", "cache"):
                value = settings.get(key)
                if isinstance(value, str) and value not in ("on", "off") and Path(value).exists():
                    settings[key] = str(Path(value).resolve())  # to be found from any folder
        clock: dict[str, JsonValue] = {"unix": time.time(), "at": asyncio.get_running_loop().time()}
        told: dict[str, JsonValue] = {"clock": clock, "settings": settings}
        return {"worker": config.worker, "model": config.model, **self.facts, **told}


@dataclass(slots=True)
class RunClaim:
    """A run that was resumed, or that has ended."""

    rebuilt: Rebuilt
    future: asyncio.Future[tuple[Finish, Run | None]]
    began: float
    """Time of submission by the driver's clock; for an ended run, by its own session's clock."""
    ended: float | None = None
    """When it ended, by the clock of its own session."""


class Resumer:
    """Resumes runs: reads runs from their journals and passes them to a driver's machine."""

    def __init__(self, config: Config, plugins: Plugins, asker: QuestionQueue, records: JournalSink) -> None:
        self._config = config
        self._plugins = plugins
        self._asker = asker
        self._records = records
        self._taken: set[str] = set()

    def find(self, run: str, path: Location | None = None) -> RunEntry:
        """Return the run with this id, or the only run with this id prefix. Raises `UsageError`."""
        return find(path or place(self._config), run)

    async def take_up(
        self,
        entry: RunEntry,
        driver: Driver,
        lend: Callable[[Task], Iterable[ToolSpec]],
        on_uncertain_side_effect: OnUncertainSideEffect,
        on_question: OnQuestion | None,
        force: bool = False,
    ) -> RunClaim:
        """Rebuild and resume a run; an ended run is only read. `lend` gives the run its own tools for its task, and
        returns the descriptions of all tools. `anyway`: resume even with other models or tools than at the start.

        Raises `ConfigError` for a journal that cannot be read, that another process writes, or that this version
        cannot resume, and `PluginError` if the request's planner or task no longer exists.
        """
        run = entry.run
        if run in self._taken:
            raise UsageError(f"run {run} is being resumed already")
        journal = Journal(entry.path)
        journal.hold(run)
        self._taken.add(run)
        recorder = driver.recorder
        try:
            rebuilt = await asyncio.to_thread(rebuild, journal.path, run, self._plugins)
            if rebuilt.record.finish is not None:
                journal.close()
                return self._read(rebuilt)
            request = rebuilt.submitted.request
            task = rebuilt.machine.runs[run].task
            brief = PlanningContext(request=request, task=task, tools=tuple(lend(task)), plugins=self._plugins)
            if not force:
                check(run, rebuilt.header.meta, driver.workers, brief.tools)
            planner = self._plugins.planner(request.planner)
            _same_kind(planner, rebuilt)
            driver.expander.adopt(run, planner, brief)
            header = rebuilt.header
            journal.open(
                meta=self._records.meta() | {"settings": header.meta.get("settings")},
                grace=header.grace,
                lease=header.lease,
                resumes=run,
                base=rebuilt.last,
                told=True,
            )
            recorder.hold(run, journal)
            self._asker.begin(run, recorder, rebuilt.answers, on_question, request.tenant)
            ruling = await rule(
                rebuilt, [worker.name for worker in driver.workers], on_uncertain_side_effect, self._asker.ask
            )
            for event, actions in settle(rebuilt, driver.workers, driver.expander, ruling):
                seq = journal.append([event], commit=False)
                journal.acted(seq, *of_runs({run}, actions, rebuilt.machine.refused))
            if rebuilt.record.finish is not None:
                recorder.drop(run)
                return self._read(rebuilt)
            began = rebuilt.submitted.at - rebuilt.machine.now
            at, future = driver.adopt(rebuilt.machine, run)
            return RunClaim(rebuilt, future, began + at)
        except BaseException:
            self._asker.end(run)
            driver.expander.forget(run)
            recorder.drop(run)
            journal.close()
            raise
        finally:
            self._taken.discard(run)

    def _read(self, rebuilt: Rebuilt) -> RunClaim:
        assert rebuilt.record.finish is not None
        future: asyncio.Future[tuple[Finish, Run | None]] = asyncio.get_running_loop().create_future()
        future.set_result((rebuilt.record.finish, rebuilt.record.records))
        return RunClaim(rebuilt, future, rebuilt.submitted.at, rebuilt.machine.now)


def settings_of(entry: RunEntry) -> Mapping[str, JsonValue]:
    """Return the recorded settings of the session in which a run was submitted."""
    journal = Journal(entry.path)
    first = next(line.first for line in journal.newest(like=entry.run) if line.run == entry.run)
    before = [header for begins, header in journal.sessions() if begins <= first]
    if not before:
        raise ConfigError(f"{entry.path} is damaged: no session of it holds the beginning of run {entry.run}")
    settings = before[-1].meta.get("settings")
    return settings if isinstance(settings, dict) else {}


def _same_kind(planner: Planner, rebuilt: Rebuilt) -> None:
    """Raise `ConfigError` if a run's planner was a flow at its start and no longer is, or the reverse."""
    steps = rebuilt.submitted.plan.steps
    began = any(map(is_root, steps))
    is_flow, reads = isinstance(planner, Flow), any(step.expands for step in steps)
    if reads and is_flow != began:
        was, now = ("a flow", "none") if began else ("no flow", "one")
        raise ConfigError(
            f"run {rebuilt.run} cannot be resumed: its planner {rebuilt.submitted.request.planner.name!r} was {was} "
            f"when plait {rebuilt.header.plait} began it, and is {now} now; start a new run, or resume it with that "
            "version"
        )
