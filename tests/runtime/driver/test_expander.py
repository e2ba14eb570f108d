"""Planners' words become events: patches in order, and whatever they raise as data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from plait import AsyncOrchestrator
from plait.core.errors import BudgetExceeded, PlanError, PlannerError
from plait.core.events import Expand, Progressed, Submitted, Succeeded, WorkerUp
from plait.core.interfaces import Merge, Planner, PlanningContext, Reader, Verdict
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result
from plait.core.task import Task
from plait.core.view import Branch
from plait.machine.machine import Machine
from plait.planning import OnBranches, call_model, pass_through
from plait.policies.merge.values import Collect
from plait.policies.merge.votes import Majority
from plait.runtime.driver.expander import Expander
from plait.runtime.plugins.loader import Plugins
from plait.workers.scripted import Reply, Scripted


def leg(name: str, after: str | None = None) -> Step:
    return Step(name=name, op=ModelCall(prompt="go", after=after, stream=True), expands=after is None)


class ByLine:
    """A patch for each whole line; `boom` in a line raises."""

    def __init__(self) -> None:
        self.rest = ""

    def feed(self, delta: str) -> Sequence[Plan]:
        *lines, self.rest = (self.rest + delta).split("\n")
        return [self.patch(line) for line in lines]

    def close(self, result: Result) -> Plan | None:
        return self.patch(self.rest, last=True) if self.rest else None

    def patch(self, line: str, last: bool = False) -> Plan:
        if line == "boom":
            raise ZeroDivisionError("no more lines")
        if line == "refuse":
            raise BudgetExceeded("too many lines")
        return Plan(steps=(leg(line, after="root"),), output=line if last else None)


class Lines(Planner):
    readers: list[str] = []

    def start(self, brief: PlanningContext) -> Plan:
        return Plan(steps=(leg("root"),), output="root")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        self.readers.append(step.name)
        return ByLine()


def ready(planner: Planner) -> tuple[Expander, Machine]:
    plugins = Plugins()
    expander, machine = Expander(), Machine(plugins)
    machine.handle(WorkerUp(at=0, worker="w", slots=4, serves=("think",)))
    request = Request(text="x")
    submitted = expander.start("r", planner, PlanningContext(request, plugins.task(request.task, "x")), 1.5)
    assert submitted == Submitted(at=1.5, run="r", request=request, plan=submitted.plan)
    machine.handle(submitted)
    return expander, machine


def delta(text: str, attempt: int = 1) -> Expand:
    return Expand(step="r:root", attempt=attempt, delta=text)


def test_patches_come_in_order_and_the_last_event_closes() -> None:
    planner = Lines(readers=[])
    expander, machine = ready(planner)
    assert expander.expand(delta("on"), machine, 2.0) == []
    said = expander.expand(delta("e\ntwo\nthr"), machine, 3.0)
    assert [(each.at, each.step, each.attempt, each.closed) for each in said] == [(3.0, "r:root", 1, False)] * 2
    assert [each.patch.steps[0].name for each in said if each.patch] == ["one", "two"]
    (last,) = expander.expand(Expand(step="r:root", attempt=1, result=Result()), machine, 4.0)
    assert last.closed and last.patch is not None and last.patch.output == "thr"
    assert planner.readers == ["root"]


def test_a_reader_with_nothing_to_add_closes_all_the_same() -> None:
    expander, machine = ready(Lines(readers=[]))
    (last,) = expander.expand(Expand(step="r:root", attempt=1, result=Result()), machine, 4.0)
    assert last.closed and last.patch is None and last.failure is None


def test_each_attempt_has_a_reader_of_its_own() -> None:
    planner = Lines(readers=[])
    expander, machine = ready(planner)
    expander.expand(delta("half a li"), machine, 2.0)
    (said,) = expander.expand(delta("whole\n", attempt=2), machine, 3.0)
    assert said.attempt == 2 and said.patch is not None and said.patch.steps[0].name == "whole"
    assert expander.expand(delta("ne\n", attempt=1), machine, 3.5) == []
    assert planner.readers == ["root", "root"]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("boom\n", "PlannerError", "Lines raised ZeroDivisionError in its reader of 'root': no more lines"),
        ("refuse\n", "BudgetExceeded", "too many lines"),
    ],
)
def test_what_a_reader_raises_is_an_event_once(text: str, kind: str, message: str) -> None:
    expander, machine = ready(Lines(readers=[]))
    (said,) = expander.expand(delta(text), machine, 2.0)
    assert said.failure is not None and (said.failure.kind, said.failure.message) == (kind, message)
    assert expander.expand(delta("more\n"), machine, 2.1) == [], "it is not asked again"
    assert machine.handle(said)[0].kind == "cancel"


@pytest.mark.parametrize("nonsense", [None, [None], ["text"], 7])
def test_a_reader_that_returns_nonsense_fails_its_step(nonsense: object) -> None:
    class Nonsense(Lines):
        def reader(self, step: Step, brief: PlanningContext) -> Reader:
            class Odd(ByLine):
                def feed(self, delta: str):  # type: ignore[override]
                    return nonsense

            return Odd()

    expander, machine = ready(Nonsense())
    (said,) = expander.expand(delta("x"), machine, 2.0)
    assert said.failure is not None and said.failure.kind == "PlannerError"


def test_a_planner_without_a_reader_fails_the_step_in_words() -> None:
    class NoReader(Planner):
        def start(self, brief: PlanningContext) -> Plan:
            return Plan(steps=(leg("root"),), output="root")

    expander, machine = ready(NoReader())
    (said,) = expander.expand(delta("x"), machine, 2.0)
    assert said.failure is not None and "has no reader for it" in said.failure.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [(KeyError("plan"), PlannerError), (PlanError("no way"), PlanError), (RecursionError(), PlannerError)],
)
def test_what_start_raises_is_of_our_tree(error: Exception, kind: type[Exception]) -> None:
    class Broken(Planner):
        def start(self, brief: PlanningContext) -> Plan:
            raise error

    with pytest.raises(kind) as caught:
        ready(Broken())
    assert type(caught.value) is kind


def test_a_plan_that_is_none_is_refused() -> None:
    class Silent(Planner):
        def start(self, brief: PlanningContext):  # type: ignore[override]
            return None

    with pytest.raises(PlannerError, match="Silent planned a NoneType, which is not a Plan"):
        ready(Silent())


def test_a_run_without_a_planner_cannot_expand() -> None:
    machine = Machine(Plugins())
    machine.handle(WorkerUp(at=0, worker="w", slots=4, serves=("think",)))
    machine.handle(Submitted(at=0, run="r", request=Request(), plan=Plan(steps=(leg("root"),), output="root")))
    (said,) = Expander().expand(delta("x"), machine, 2.0)
    assert said.failure is not None and "without a planner" in said.failure.message


def test_news_of_what_is_over_gives_nothing() -> None:
    expander, machine = ready(Lines(readers=[]))
    expands = machine.handle(Progressed(at=2, attempt=1, text="one\n", tokens=1))
    (expand,) = [each for each in expands if isinstance(each, Expand)]
    expander.forget("r")
    (said,) = expander.expand(expand, machine, 2.0)
    assert said.failure is not None, "the run is there, its planner was forgotten"
    machine.handle(said)
    machine.handle(Succeeded(at=3, attempt=1, result=Result()))
    assert not machine.runs
    assert expander.expand(expand, machine, 4.0) == []


async def test_a_reader_of_a_join_may_see_the_branches() -> None:
    seen: list[tuple[str, str, float | None]] = []

    class Best(Planner):
        def start(self, brief: PlanningContext) -> Plan:
            drafts = [call_model(brief, "best", f"d{i}", f"draft {i}", max_tokens=9, logprobs=True) for i in (1, 2)]
            gather = Step(name="all", op=Join(merge=Collect()), needs=("d1", "d2"), expands=True)
            return Plan(steps=(*drafts, gather), output="all")

        def reader(self, step: Step, brief: PlanningContext) -> Reader:
            return OnBranches(self.best)

        def best(self, result: Result, branches: Sequence[Branch]) -> Plan:
            seen.extend((each.name, each.line, each.result.logprob if each.result else None) for each in branches)
            return Plan(steps=(pass_through("end", branches[-1].name),), output="end")

    replies = [Reply(when="draft 1", text="one"), Reply(text="two")]
    async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as orchestrator:
        answer = await orchestrator.run("q", planner=Best())
    assert answer.answer == "two"
    assert [each[:2] for each in seen] == [("d1", "one"), ("d2", "two")]


class Longest(Merge):
    """The longest text."""

    least: int = 0
    """Characters that it needs."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        best = max(branches, key=lambda branch: len(branch.text))
        return Verdict(value=best.text, why=f"at least {self.least}", winner=best.name)


async def test_a_join_takes_a_merge_as_an_object() -> None:
    class Shortest(Longest):
        """One that cannot be imported."""

    steps = [Step(name="a", op=ModelCall(prompt="a")), Step(name="b", op=ModelCall(prompt="b"))]
    for merge, name in ((Longest(least=2), f"{__name__}:Longest"), (Shortest(), "Shortest")):
        join = Step(name="end", op=Join(merge=merge), needs=("a", "b"))
        assert isinstance(join.op, Join) and join.op.merge.name.endswith(name)
        replies = [Reply(when="a", text="short"), Reply(text="longer")]
        async with AsyncOrchestrator(workers=[Scripted(replies)], journal="off") as orchestrator:
            answer = await orchestrator.run(plan=Plan(steps=(*steps, join), output="end"))
        assert (answer.value, answer.why) == ("longer", f"at least {merge.least}")
    assert Join(merge=Majority(weights={"a": 2})).merge == Plugin(name="majority", options={"weights": {"a": 2}})
