"""What tests of the machine are made of: plan builders, plugins by name, and a `World` that plays the driver.

The world hands events in one by one, in whatever order a test chooses, and checks after each that the machine's
invariants hold and that its actions are ones a driver can carry out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plait.core.budget import Budget
from plait.core.errors import PluginError, TaskError
from plait.core.events import (
    Action,
    Cancel,
    Cancelled,
    Dispatch,
    Event,
    Expand,
    Expanded,
    Failed,
    Finish,
    Job,
    Limited,
    Paused,
    Progressed,
    Pruned,
    Stopped,
    Submitted,
    Succeeded,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from plait.core.interfaces import Merge, Policy, Verdict
from plait.core.ops import Join, Kind, ModelCall, Plugin, Ref, Text, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request, Retries
from plait.core.result import Failure, Finish as FinishReason, Result, Usage
from plait.core.sampling import Sampling
from plait.core.states import State
from plait.core.task import Task
from plait.core.view import Branch
from plait.machine.decision_replay import Order, RefuseOrder, SendOrder
from plait.machine.machine import Machine
from plait.machine.records import Node
from tests.machine.invariants import check_invariants


def orders_of(actions: Sequence[Action], refused: Sequence[tuple[int, RefuseOrder]] = ()) -> list[Order]:
    """Return the orders in a machine's answer to an event, in their order; `refused` is its `Machine.refused`."""
    orders: list[Order] = []
    waiting = list(refused)
    for index, action in enumerate(actions):
        while waiting and waiting[0][0] <= index:
            orders.append(waiting.pop(0)[1])
        if isinstance(action, Dispatch):
            job = action.job
            orders.append(SendOrder(job.step, action.worker, job.attempt, job.priority, action.reason))
    return orders + [order for _, order in waiting]


# -- plugins -----------------------------------------------------------------------------------------------------------


class PlainTask(Task):
    """Any text; the text `unreadable` is refused."""

    def extract(self, text: str) -> JsonValue:
        return text

    def key(self, answer: JsonValue) -> str:
        return str(answer)


class Collect(Merge):
    """The values of the branches that are done, in order."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        done = [each.result.value for each in branches if each.result is not None]
        return Verdict(value=done, why=f"{len(done)} of {len(branches)}")


class Vote(Merge):
    """The value most branches have; certain once the rest cannot overtake it."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        (value, votes), *_ = self.counts(branches)
        return Verdict(value=value, why=f"{votes} votes")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        (_, first), (_, second), *_ = [*self.counts(branches), ("", 0), ("", 0)]
        return first > second + outstanding

    @staticmethod
    def counts(branches: Sequence[Branch]) -> list[tuple[str, int]]:
        return Counter(each.result.text for each in branches if each.result is not None).most_common()


class First(Merge):
    """The value of the first branch."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        return Verdict(value=branches[0].result.value if branches[0].result else None, why="the first")


class BrokenMerge(Merge):
    """Raises when asked for its verdict."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        raise ZeroDivisionError("no verdict")


class BrokenDecided(Collect):
    """Raises when asked whether it is certain."""

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        raise ZeroDivisionError("cannot tell")


MERGES: dict[str, Merge] = {
    "collect": Collect(),
    "vote": Vote(),
    "first": First(),
    "broken": BrokenMerge(),
    "broken-decided": BrokenDecided(),
}


class Registry:
    """Plugins by name, as the machine asks for them."""

    def __init__(self, policies: Mapping[str, Policy] | None = None, merges: Mapping[str, Merge] | None = None) -> None:
        self.policies = dict(policies or {})
        self.merges = MERGES | dict(merges or {})

    def policy(self, spec: Plugin) -> Policy:
        if spec.name not in self.policies:
            raise PluginError(f"no policy {spec.name!r}")
        return self.policies[spec.name]

    def merge(self, spec: Plugin) -> Merge:
        if spec.name not in self.merges:
            raise PluginError(f"no merge {spec.name!r}")
        return self.merges[spec.name]

    def task(self, spec: Plugin, text: str) -> Task:
        if text == "unreadable":
            raise TaskError("this text cannot be read")
        return PlainTask(text=text)


# -- plans -------------------------------------------------------------------------------------------------------------


def think(
    name: str,
    *needs: str,
    after: str | None = None,
    prompt: str | Sequence[Text | Ref] = "p",
    tokens: int = 100,
    stream: bool = False,
    expands: bool = False,
    budget: Budget | None = None,
    priority: int = 0,
    model: str | None = None,
) -> Step:
    parts = (Text(text=prompt),) if isinstance(prompt, str) and prompt else tuple(p for p in prompt if p != "")
    op = ModelCall(prompt=parts, after=after, sampling=Sampling(max_tokens=tokens), stream=stream, model=model)  # type: ignore[arg-type]
    return Step(name=name, op=op, needs=needs, expands=expands, budget=budget, priority=priority)


def call(
    name: str,
    *needs: str,
    args: dict[str, JsonValue] | None = None,
    expands: bool = False,
    budget: Budget | None = None,
    priority: int = 0,
    side_effects: bool = False,
) -> Step:
    op = ToolCall(tool="f", args=args or {})
    return Step(
        name=name,
        op=op,
        needs=needs,
        expands=expands,
        budget=budget,
        priority=priority,
        side_effects=side_effects,
    )


def join(
    name: str,
    *needs: str,
    merge: str = "collect",
    quorum: int | None = None,
    best_effort: bool = False,
    any_end: bool = False,
    deadline: float | None = None,
    early: bool = False,
    expands: bool = False,
    budget: Budget | None = None,
) -> Step:
    on_failure = "quorum" if quorum else "best-effort" if best_effort else "any-end" if any_end else "all"
    op = Join(merge=Plugin(name=merge), on_failure=on_failure, quorum=quorum, deadline=deadline, early=early)
    return Step(name=name, op=op, needs=needs, expands=expands, budget=budget)


def plan(*steps: Step, output: str | None = "", budget: Budget | None = None) -> Plan:
    """A plan whose output is its last step unless another is named; `output=None` names none."""
    return Plan(steps=steps, output=steps[-1].name if output == "" else output, budget=budget)


def fail_with(
    message: str = "it broke", kind: str = "ToolError", *, retryable: bool = False, lost: bool = False
) -> Failure:
    return Failure(kind=kind, message=message, retryable=retryable, lost=lost)


# -- the world ---------------------------------------------------------------------------------------------------------


class World:
    """A machine with one worker `w`, and everything that is still to be answered. Steps are named without their run."""

    def __init__(
        self,
        *,
        slots: int = 4,
        serves: tuple[Kind, ...] = ("think", "call"),
        policies: Mapping[str, Policy] | None = None,
        merges: Mapping[str, Merge] | None = None,
        grace: float = 10.0,
        lease: float | None = None,
        checked: bool = True,
    ) -> None:
        self.machine = Machine(Registry(policies, merges), cancel_timeout=grace, lease=lease)
        self.checked = checked
        self.now = 0.0
        self.events: list[Event] = []
        self.answers: list[list[Action]] = []
        """What the machine said to each event."""
        self.orders: list[list[Order]] = []
        """What another machine has to be told to say the same."""
        self.jobs: dict[int, Dispatch] = {}
        """By attempt, what workers have been given and have not answered."""
        self.stopping: list[int] = []
        """Attempts that workers were told to stop and have not answered."""
        self.finishes: dict[str, Finish] = {}
        self.wake: float | None = None
        self.requests: dict[str, Request] = {}
        if slots:
            self.up("w", slots, serves)

    # -- in and out

    def send(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event)
        self.events.append(event)
        self.answers.append(actions)
        self.orders.append(orders_of(actions, self.machine.refused))
        for action in actions:
            self._take(action)
        if self.checked:
            check_invariants(self.machine)
        return actions

    def _take(self, action: Action) -> None:
        match action:
            case Dispatch():
                assert action.job.attempt not in self.jobs, "an attempt id was used twice"
                assert action.job.run not in self.finishes, "work was sent out for a run that is over"
                assert self.machine.workers[action.worker].up, "work was sent to a worker that is down"
                self.jobs[action.job.attempt] = action
            case Cancel(attempt=int(attempt)):
                assert attempt in self.jobs, "a worker was told to stop what it does not have"
                assert attempt not in self.stopping, "a worker was told twice to stop"
                assert action.worker == self.jobs[attempt].worker
                self.stopping.append(attempt)
            case Cancel() | Expand():
                pass
            case WakeAt():
                self.wake = action.at
            case Finish():
                assert action.run not in self.finishes, "a run finished twice"
                self.finishes[action.run] = action

    def _answered(self, attempt: int) -> None:
        self.jobs.pop(attempt, None)
        if attempt in self.stopping:
            self.stopping.remove(attempt)

    # -- finding things

    @staticmethod
    def id(step: str) -> str:
        return step if ":" in step else f"r:{step}"

    def node(self, step: str) -> Node:
        """The record of a step, also of a run that has just finished."""
        for run in [*self.machine.runs.values(), *self.machine.retired]:
            for node in run.nodes:
                if node.id == self.id(step):
                    return node
        raise KeyError(step)

    def state(self, step: str) -> State:
        return self.node(step).state

    def states(self, *steps: str) -> list[str]:
        return [self.state(step).value for step in steps]

    def attempt(self, step: str) -> int:
        """The latest attempt at a step that its worker has not answered."""
        return max(number for number, each in self.jobs.items() if each.job.step == self.id(step))

    def job(self, step: str) -> Job:
        return self.jobs[self.attempt(step)].job

    def running(self) -> list[str]:
        """Steps that workers have and have not been told to stop, in the order in which they were sent out."""
        return [each.job.step.removeprefix("r:") for n, each in self.jobs.items() if n not in self.stopping]

    @property
    def last(self) -> list[Action]:
        return self.answers[-1]

    def said(self, kind: type[Action]) -> list[Action]:
        """Actions of one kind in the answer to the latest event."""
        return [each for each in self.last if isinstance(each, kind)]

    @property
    def finish(self) -> Finish:
        return self.finishes["r"]

    # -- events

    def up(
        self,
        worker: str = "w",
        slots: int = 4,
        serves: tuple[Kind, ...] = ("think", "call"),
        models: tuple[str, ...] = (),
        reports: int | None = None,
    ) -> list[Action]:
        up = WorkerUp(at=self.now, worker=worker, slots=slots, serves=serves, models=models, reports=reports)
        return self.send(up)

    def down(self, worker: str = "w", *, returning: bool = False, reason: str = "") -> list[Action]:
        for attempt in [number for number, each in self.jobs.items() if each.worker == worker]:
            self._answered(attempt)
        return self.send(WorkerDown(at=self.now, worker=worker, returning=returning, reason=reason))

    def submit(
        self,
        *steps: Step,
        output: str | None = "",
        run: str = "r",
        text: str = "",
        budget: Budget | None = None,
        group: Budget | None = None,
        retries: Retries | None = None,
        policies: Sequence[str] = (),
        fairness_group: str = "",
        fairness_weight: float = 1.0,
        priority: int = 0,
        planner: str = "sample",
        default_token_limit: int | None = None,
    ) -> list[Action]:
        request = Request(
            default_token_limit=default_token_limit,
            planner=Plugin(name=planner),
            fairness_group=fairness_group,
            fairness_weight=fairness_weight,
            priority=priority,
            text=text,
            budget=budget or Budget(),
            retries=retries or Retries(),
            policies=tuple(Plugin(name=name) for name in policies),
        )
        self.requests[run] = request
        return self.send(
            Submitted(at=self.now, run=run, request=request, plan=plan(*steps, output=output, budget=group))
        )

    def succeed(
        self,
        step: str,
        value: JsonValue = "v",
        *,
        tokens: int = 0,
        prompt_ids: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        finish: FinishReason = "stop",
        usage: Usage | None = None,
    ) -> list[Action]:
        attempt = self.attempt(step)
        self._answered(attempt)
        result = Result(
            value=value,
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(token_ids),
            usage=usage or Usage(completion=tokens),
            finish=finish,
        )
        return self.send(Succeeded(at=self.now, attempt=attempt, result=result))

    def fail(self, step: str, failure: Failure | None = None, usage: Usage | None = None) -> list[Action]:
        attempt = self.attempt(step)
        self._answered(attempt)
        return self.send(Failed(at=self.now, attempt=attempt, failure=failure or fail_with(), usage=usage or Usage()))

    def stopped(self, step: str, *, tokens: int = 0) -> list[Action]:
        attempt = self.attempt(step)
        self._answered(attempt)
        result = Result(finish="cancelled", usage=Usage(completion=tokens))
        return self.send(Stopped(at=self.now, attempt=attempt, result=result))

    def progress(self, step: str, text: str = "", tokens: int = 0, ids: Sequence[int] = ()) -> list[Action]:
        tokens = tokens or len(ids)
        attempt = self.attempt(step)
        return self.send(Progressed(at=self.now, attempt=attempt, text=text, tokens=tokens, ids=tuple(ids)))

    def expand(
        self,
        step: str,
        *steps: Step,
        output: str | None = "",
        closed: bool = True,
        budget: Budget | None = None,
        attempt: int | None = None,
    ) -> list[Action]:
        """A patch to a step; without `steps` and `output` only the news that no more will come."""
        patch = plan(*steps, output=output, budget=budget) if steps or output else None
        number = self.machine.nodes[self.id(step)].attempts.generation if attempt is None else attempt
        return self.send(Expanded(at=self.now, step=self.id(step), attempt=number, patch=patch, closed=closed))

    def fail_expansion(self, step: str, failure: Failure | None = None) -> list[Action]:
        number = self.machine.nodes[self.id(step)].attempts.generation
        failure = failure or fail_with("cannot read this", "PlannerError")
        return self.send(Expanded(at=self.now, step=self.id(step), attempt=number, failure=failure))

    def cancel(self, run: str = "r") -> list[Action]:
        return self.send(Cancelled(at=self.now, run=run))

    def prune(self, step: str) -> list[Action]:
        return self.send(Pruned(at=self.now, step=self.id(step)))

    def pause(self, run: str = "r", on: bool = True) -> list[Action]:
        return self.send(Paused(at=self.now, run=run, on=on))

    def limit(self, run: str = "r", **limits: float) -> list[Action]:
        return self.send(Limited(at=self.now, run=run, budget=Budget(**limits)))  # type: ignore[arg-type]

    def tick(self, at: float | None = None) -> list[Action]:
        """Let the time come that the machine asked to be woken at, or another."""
        if at is None:
            assert self.wake is not None, "the machine did not ask to be woken"
            at = self.wake
        self.now = max(self.now, at)
        return self.send(Tick(at=self.now))

    def stop_all(self) -> None:
        """Workers confirm every cancel that they were told of."""
        for attempt in list(self.stopping):
            self._answered(attempt)
            self.send(Stopped(at=self.now, attempt=attempt))
