"""Run flows: planners written as coroutines.

Without an event loop: a coroutine is resumed when a step that it awaits has ended, until all coroutines wait again;
then its new steps go out as one patch. Its behaviour depends only on the ends of steps and their order, so a run is
resumed by running the coroutine again through the ends in the journal.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar, cast

from ...core.errors import (
    RAISED,
    BudgetExceeded,
    ConfigError,
    FlowError,
    NotAllowed,
    PlaitError,
    PlannerError,
)
from ...core.events import Event, Expanded, Pruned
from ...core.flow import ROOT, Context, Flow
from ...core.interfaces import PlanningContext, demand_size
from ...core.plan import Plan, Step
from ...core.planning import derive
from ...core.result import Failure, Result, as_failure, frames_of
from ...core.step_handles import FlowPlace, Group, Promise, StepFailed, StepHandle
from .turn_counter import Calls, Turns
from .watchdog import WATCHDOG, TooLong, WatchSpan

log = logging.getLogger("plait.flows")

T = TypeVar("T")
_SPIN = 100_000
"""Maximum number of ended steps that a flow may await in a row without suspending."""
_MOST = 20_000
"""Maximum number of steps that a flow may make without suspending."""
_PATCH = {"steps"}
"""The fields that a patch sets."""
_REMEDY = "make it a tool and `ctx.call` it; a flow awaits steps, `ctx.gather`, `ctx.first` and `ctx.race`"


class FlowTask(Promise[Any]):
    """One coroutine of a flow."""

    def __init__(self, host: RunningFlow, coroutine: Coroutine[Any, Any, Any], place: FlowPlace) -> None:
        super().__init__(host)
        self.place = place
        self.coroutine = coroutine
        self.made: list[StepHandle[Any]] = []
        self.tasks: list[FlowTask] = []
        self.given_up = False

    def __repr__(self) -> str:
        return f"<coroutine {getattr(self.coroutine, '__name__', '?')}>"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a step, as a flow receives it."""

    step: str
    """Step id."""
    result: Result | None
    failure: Failure | None


class RunningFlow:
    """One flow of one run. `root` is the id of the step that represents it, `attempt` the machine's number for that;
    `turns`: a budget around it limits turns."""

    def __init__(
        self,
        flow: Flow,
        brief: PlanningContext,
        root: str,
        attempt: int,
        revise: Callable[[Plan, PlanningContext], Plan],
        turns: bool = False,
    ) -> None:
        self.brief: PlanningContext
        self.root: str
        self._flow, self.brief, self.root, self._attempt = flow, brief, root, attempt
        self._revise = revise
        self._began = self._now = 0.0
        self._handles: dict[str, StepHandle[Any]] = {}
        """Steps that have not ended, by id."""
        self._made: list[tuple[StepHandle[Any], Group | None]] = []
        self._refused: dict[str, str] = {}
        """Refusals of unsent steps by a budget of a scope, by step name."""
        self._given_up: dict[str, str] = {}
        self._opened: set[str] = set()
        """Groups whose budget was sent to the machine."""
        self._turns = Turns(turns)
        self._waited: dict[str, Calls] = {}
        """Model calls that led to unsent steps, by step name."""
        self._ready: deque[FlowTask] = deque()
        self._current: FlowTask | None = None
        self._spun = self._keeps = 0
        self._over = self._telling = False
        self._cut = False
        """It read a result that a budget or deadline had cut."""
        self._watched: WatchSpan | None = None
        self.patient = False
        """It may wait while none of its steps is active, because another part makes them."""
        self._name = type(flow).__name__
        self._outside = self._place("")
        self.context: Context = Context(self, brief, self._name)
        self._main: FlowTask | None = None

    @property
    def not_resumable(self) -> str:
        """The reason why the flow cannot be resumed, or an empty text."""
        return self._flow.gone

    # -- calls of the context ----------------------------------------------------------------------------------------

    def add_step(self, handle: StepHandle[Any], group: Group | None, place: FlowPlace | None = None) -> None:
        """Add a step that the flow has made. `place`: that of its coroutine, by default of the running one."""
        if self._over:
            raise FlowError(f"{type(self._flow).__name__} made {handle.name} after it had ended")
        if len(self._made) >= _MOST:
            raise FlowError(f"it made {_MOST:,} steps without waiting for any: await some before it makes more")
        self._made.append((handle, group))
        refused = _count(group)
        if refused:  # it enters the plan as a failed step: a join over it may tolerate that
            self._refused[handle.name] = refused
            handle.end(None, as_failure(BudgetExceeded(refused)))
            return
        self._handles[f"{self.root}/{handle.name}"] = handle
        if group is not None:
            group.steps.append(handle)
        waited = self._turns.count_step(handle.step, group, (place or self.place()).calls)
        if waited:
            self._waited[handle.name] = waited
        if self._current is not None:
            self._current.made.append(handle)
            if self._current.given_up:
                self.give_up(handle, "made by a cancelled coroutine")

    def place(self) -> FlowPlace:
        """Return the place of the running coroutine."""
        return self._current.place if self._current is not None else self._outside

    def inner(self, place: FlowPlace) -> FlowPlace:
        """Return the place of a new coroutine that is started at another's."""
        inner = self._place(place.inner())
        inner.calls.update(place.calls)
        return inner

    def _place(self, prefix: str) -> FlowPlace:
        return FlowPlace(prefix, random.Random(derive(self.brief.request.seed, self._name, f"{prefix}random")))

    def give_up(self, handle: StepHandle[Any], reason: str) -> None:
        """Cancel a step."""
        self._given_up.setdefault(f"{self.root}/{handle.name}", reason)

    def keep(self, value: object) -> str:
        """Keep a value for the readers of its steps, and return its name."""
        # By a name and not in the step: a step is written to the journal, and the value need not be JSON.
        self._keeps += 1
        name = f"{self.root}#{self._keeps}"
        self.brief.kept[name] = value
        return name

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Promise[T]:
        """Start a coroutine beside the running one."""
        if not isinstance(coroutine, Coroutine):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise FlowError(f"a flow cannot wait for {coroutine!r}: {_REMEDY}")
        task = FlowTask(self, coroutine, self.inner(self.place()))
        if self._current is not None:
            self._current.tasks.append(task)
        self._ready.append(task)
        return task

    def abandon(self, task: Promise[Any], reason: str) -> None:
        """Cancel a coroutine, with all steps that it has made."""
        if not isinstance(task, FlowTask) or task.ended:
            return
        task.given_up = True
        for step in task.made:
            if not step.ended:
                self.give_up(step, reason)
        for inner in task.tasks:
            self.abandon(inner, reason)
        if task is not self._current:  # Python cannot throw into a coroutine that is running
            self._close(task)
        task.settle(error=StepFailed(repr(task), Failure(kind="Cancelled", message=reason)))

    def wait(self, awaited: Promise[Any]) -> Generator[Any, None, None]:
        """Suspend the running coroutine until something has ended."""
        self._spun = 0
        yield awaited

    def note_passed(self) -> None:
        """Count awaits that did not suspend, and stop a flow with too many in a row: it may never end."""
        self._spun += 1
        if self._spun > _SPIN:
            raise FlowError(f"it awaited ended steps {_SPIN:,} times in a row: it seems to have no end")

    def read(self, awaited: Promise[object], place: FlowPlace | None = None) -> None:
        """Record that a coroutine, by default the running one, has read the end of a step or coroutine."""
        if isinstance(awaited, StepHandle) and awaited.partial:
            self._cut = True
        place = place or (self._current.place if self._current is not None else None)
        if place is not None and not self._telling:
            self._turns.read(awaited, place.calls)

    def now(self) -> float:
        """Return the time, in seconds after the run began."""
        return self._now - self._began

    # -- events of the machine ---------------------------------------------------------------------------------------

    def begin(self, now: float, at: float) -> list[Event]:
        """Start the coroutine, and return its events. `now` is the machine's time, `at` that of the events."""
        self._began = self._now = now
        watched = WATCHDOG.begin(self._flow.turn_seconds)
        try:
            question = self.brief.task.render()
            coroutine = self._flow.run(self.context, question)
            if not isinstance(coroutine, Coroutine):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise FlowError("its `run` is no coroutine: write `async def run(self, ctx, question)`")
        except (*RAISED, TooLong) as error:
            self._over = True
            return [self._failed(_explain_error(error, watched), at)]
        finally:
            WATCHDOG.end(watched)
        self._main = FlowTask(self, coroutine, self._outside)
        self._ready.append(self._main)
        return self._turn((), at)

    def handle_ends(self, ends: Iterable[End], now: float, at: float) -> list[Event]:
        """Handle ends of steps, in order, and return the flow's events."""
        if self._over:
            return []
        self._now = now
        return self._turn(ends, at)

    def take_made_steps(self, at: float) -> list[Event]:
        """Return the events for steps that were made from outside."""
        return [] if self._over else self._go_on(at)

    def knows(self, step: str) -> bool:
        """Return whether the flow waits for the end of a step, by its id."""
        return step in self._handles

    def close(self, ends: Iterable[End] = ()) -> None:
        """Cancel running coroutines and steps; a coroutine that resists its cancellation is logged."""
        self._over = True
        for task in self._all(self._main):
            if not task.ended:
                self._close(task)
        for end in ends:
            self._handles.pop(end.step).end(end.result, end.failure)
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            handle.end(None, Failure(kind="Cancelled", message="the run is over"))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _turn(self, ends: Iterable[End], at: float) -> list[Event]:
        watched = self._watched = WATCHDOG.begin(self._flow.turn_seconds)
        try:
            self._telling = True
            for end in ends:
                handle = self._handles.pop(end.step, None)
                if handle is not None:
                    handle.end(end.result, end.failure)  # asks the `ok` of a `first`
            self._telling = False
            return self._go_on(at) if self._ready else []
        except TooLong as error:
            return self._stopped(_explain_error(error, watched), at)
        finally:
            self._telling = False
            WATCHDOG.end(watched)

    def _go_on(self, at: float) -> list[Event]:
        while self._ready and not self._over:
            self._resume(self._ready.popleft())
        main = self._main
        assert main is not None
        try:
            patches = self._patches()
        except NotAllowed as error:
            return self._stopped(error, at)
        if main.ended:
            return self._ended(main, patches, at)
        if not self._handles and not patches and not self.patient:
            error = FlowError("it waits for ever: none of its steps is running")
            return self._stopped(error, at)
        return self._take_events(patches, at)

    def _resume(self, task: FlowTask) -> None:
        """Run a coroutine until it waits or ends."""
        if task.ended:
            return
        self._current, self._spun = task, 0
        try:
            wanted: object = task.coroutine.send(None)
            while not isinstance(wanted, Promise):
                name = "something that ended at once" if wanted is None else repr(wanted)[:200]
                # Thrown at the `await` itself, so that the trace shows the line and the flow may catch it.
                wanted = task.coroutine.throw(FlowError(f"it awaited {name}, which is no step: {_REMEDY}"))
            if wanted is task:
                wanted = task.coroutine.throw(FlowError("it awaited itself"))
            cast("Promise[object]", wanted).when_ended(lambda: self._ready.append(task))
        except StopIteration as stop:
            task.settle(stop.value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            task.settle(error=_explain_error(error, self._watched))
        finally:
            self._current = None

    def _ended(self, main: FlowTask, patches: list[Plan], at: float) -> list[Event]:
        try:
            value = main.outcome()
            if not isinstance(value, StepHandle):
                value = self.context.answer(value)
            patches += self._patches()
        except BaseException as error:
            return self._stopped(error, at)
        last = self._take_events(patches, at)  # before `close`, which forgets the cancellations of the last turn
        self.close()
        end = Plan(steps=(), output=value.name)
        cut = self._cut and not self._flow.cuts_are_fine
        return [*last, Expanded(at, self.root, self._attempt, end, closed=True, cut=cut)]

    def _stopped(self, error: BaseException, at: float) -> list[Event]:
        """Fail the flow: unsent steps are dropped, and the machine cancels running ones."""
        self.close()
        return [self._failed(error, at)]

    def _failed(self, error: BaseException, at: float) -> Event:
        return Expanded(at=at, step=self.root, attempt=self._attempt, failure=failure_of(self._flow, error))

    def _all(self, task: FlowTask | None) -> list[FlowTask]:
        return [] if task is None else [task, *(inner for below in task.tasks for inner in self._all(below))]

    def _close(self, task: FlowTask) -> None:
        """End a coroutine at its `await`. Errors that it raises then are only logged."""
        # The run no longer depends on it, so its error must not fail the run.
        before, self._current, task.given_up = self._current, task, True
        watched = WATCHDOG.begin(self._flow.turn_seconds)
        try:
            task.coroutine.throw(asyncio.CancelledError("given up"))
            task.coroutine.close()
            raise FlowError("it awaited something after its cancellation")
        except (StopIteration, asyncio.CancelledError):
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            name = type(self._flow).__name__
            why = _explain_error(error, watched)
            log.warning("%s raised at its cancellation (%s): %s", name, self.root, why)
        finally:
            WATCHDOG.end(watched)
            self._current = before
            task.settle(error=StepFailed(repr(task), Failure(kind="Cancelled", message="given up")))

    def _patches(self) -> list[Plan]:
        """Return the steps made since the last call as patches, one for each row of steps of one group."""
        made, self._made = self._made, []
        if all(group is None for _, group in made):
            return self._patch([handle.step for handle, _ in made], None) if made else []
        patches: list[Plan] = []
        steps: list[Step] = []
        group: Group | None = None
        for handle, its_group in made:
            if its_group is not group and steps:
                patches += self._patch(steps, group)
                steps = []
            group = its_group
            steps.append(handle.step)
        if steps:
            patches += self._patch(steps, group)
        return patches

    def _patch(self, steps: list[Step], group: Group | None) -> list[Plan]:
        if group is None:
            # Without validation: the context has checked the names, and flows may make thousands of steps.
            plan = Plan.model_construct(_PATCH, steps=tuple(steps), output=None, budget=None, group="")
            return [self._revise(plan, self.brief)]
        around = self._opening(group)
        budget = None if group.name in self._opened else group.budget
        self._opened.add(group.name)
        return [*around, self._revise(Plan(steps=tuple(steps), budget=budget, group=group.name), self.brief)]

    def _opening(self, group: Group) -> list[Plan]:
        """Return empty patches with the budgets of outer scopes that have made no step, outermost first."""
        # A scope's account can only be opened under the account around it.
        outer = group.outer
        if outer is None or outer.name in self._opened:
            return []
        self._opened.add(outer.name)
        own = [] if outer.budget is None else [Plan(steps=(), budget=outer.budget, group=outer.name)]
        return [*self._opening(outer), *own]

    def _take_events(self, patches: list[Plan], at: float) -> list[Event]:
        waited, self._waited = self._waited, {}
        refused, self._refused = self._refused, {}
        events: list[Event] = []
        for patch in patches:
            of_it = {step.name: waited[step.name] for step in patch.steps if step.name in waited} if waited else {}
            not_allowed = (
                {step.name: refused[step.name] for step in patch.steps if step.name in refused} if refused else {}
            )
            events.append(
                Expanded(at=at, step=self.root, attempt=self._attempt, patch=patch, waited=of_it, refused=not_allowed)
            )
        given_up, self._given_up = self._given_up, {}
        events += [Pruned(at=at, step=step, reason=why) for step, why in given_up.items() if step in self._handles]
        return events


def _count(group: Group | None) -> str:
    """Count a step in its scopes; return a message if one of their budgets refuses it. The flow receives the refusal as
    a failed step; only the run's own budget ends the flow."""
    scopes = list(group.chain()) if group is not None else []
    for scope in scopes:
        limit = scope.budget.steps if scope.budget is not None else None
        if limit is not None and scope.count >= limit:
            return f"scope {scope.name}: a limit of {limit} steps is used; raise `steps`"
    for scope in scopes:
        scope.count += 1
    return ""


def failure_of(flow: Flow, error: BaseException) -> Failure:
    """Return the failure of the run of a flow that raised."""
    match error:
        case StepFailed():
            return error.failure.bare.model_copy(update={"message": f"{error.step}: {error.failure.message}"})
        case FlowError():
            return as_failure(FlowError(f"{type(flow).__name__}: {error}"))
        case PlaitError():
            return as_failure(error)
        case _:
            failure = as_failure(PlannerError(f"{type(flow).__name__} raised {type(error).__name__}: {error}"))
            return failure.model_copy(update={"frames": frames_of(error)})


def _explain_error(error: BaseException, watched: WatchSpan | None) -> BaseException:
    if isinstance(error, TooLong) and watched is not None:
        return FlowError(watched.words())
    if isinstance(error, RuntimeError) and "no running event loop" in str(error):
        return FlowError(f"it awaited something of asyncio, which is no step: {_REMEDY}")
    if isinstance(error, RuntimeError) and "ignored GeneratorExit" in str(error):
        return FlowError("it awaited something after its cancellation")
    return error


# Only code that these call is ever stopped: an exception in plait's own code could leave its state half changed.
for _each in (RunningFlow.begin, RunningFlow._turn, RunningFlow._close):  # pyright: ignore[reportPrivateUsage]
    WATCHDOG.guards(_each.__code__)


def first_patch(flow: Flow, brief: PlanningContext) -> Plan:
    """Return the steps that a flow makes before it waits for the first time. Raises what it raises."""
    demand_size(flow, brief)
    running = RunningFlow(flow, brief, ROOT, 0, lambda plan, brief: plan)
    events = [event for event in running.begin(0.0, 0.0) if isinstance(event, Expanded)]
    running.close()
    for event in events:
        if event.failure is not None:
            raise PlannerError(event.failure.message)
    patches = [event.patch for event in events if event.patch is not None]
    output = next((patch.output for patch in patches if patch.output is not None), None)
    return Plan(steps=tuple(step for patch in patches for step in patch.steps), output=output)


# -- resuming a run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """The journal's record of a flow at one event: the event, if it is the flow's own, and the steps that ended."""

    at: float
    event: Expanded | Pruned | None
    ended: tuple[str, ...]
    began: bool = False


def replay_flow(flow: RunningFlow, trail: Iterable[FlowRecord], end_of: Callable[[str], End], at: float) -> list[Event]:
    """Replay a flow through its journal records, and return the events that the journal lacks.

    Raises `ConfigError` that names the first step in which the flow differs from its records.
    """
    if flow.not_resumable:
        raise ConfigError(f"the run cannot be resumed: {flow.not_resumable}")
    waiting: deque[Event] = deque()
    pruned: set[str] = set()
    for heard in trail:
        if isinstance(heard.event, Pruned):
            pruned.add(heard.event.step)
        elif heard.event is not None:
            while waiting and isinstance(waiting[0], Pruned):
                waiting.popleft()
            _compare(flow, heard.event, waiting.popleft() if waiting else None)
        new = flow.begin(heard.at, at) if heard.began else []
        new += flow.handle_ends([end_of(step) for step in heard.ended], heard.at, at)
        waiting.extend(new)
    left = [event for event in waiting if not (isinstance(event, Pruned) and event.step in pruned)]
    return left


def _compare(flow: RunningFlow, recorded: Expanded, now: Event | None) -> None:
    """Raise `ConfigError` if an event of a flow differs from the recorded one."""
    same = isinstance(now, Expanded) and (recorded.patch, recorded.closed, recorded.failure) == (
        now.patch,
        now.closed,
        now.failure,
    )
    if same:
        return
    was = _words(recorded)
    became = _words(now) if isinstance(now, Expanded) else ["no more steps"]
    end = "no more steps"
    pairs = zip_longest([*was, end], [*became, end], fillvalue=end)
    before, after = next(((a, b) for a, b in pairs if a != b), (was, became))
    raise ConfigError(
        "the run cannot be resumed: its planner has changed since, or is not deterministic: it had made "
        f"{before}, and now makes {after}; resume with the old planner, or start a new run"
    )


def _words(event: Expanded) -> list[str]:
    if event.failure is not None:
        return [f"a failure ({event.failure.message})"]
    steps = event.patch.steps if event.patch is not None else ()
    words = [f"{step.name} ({step.model_dump_json(exclude_defaults=True)})" for step in steps]
    return [*words, f"an end in {event.patch.output if event.patch else None}"] if event.closed else words
