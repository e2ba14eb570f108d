"""Planners, policies, merges and verifiers that a program hands over: instances, classes, plain functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from plait import AsyncOrchestrator, Join, Merge, ModelCall, Plan, Planner, Policy, Step, Verdict
from plait.core.errors import PluginError
from plait.core.interfaces import PlanningContext
from plait.core.ops import Plugin
from plait.runtime.journal.replay import replay
from plait.runtime.plugins.inline import verified
from plait.runtime.plugins.loader import Plugins
from plait.tasks.plain import Plain
from plait.workers.scripted import Reply, Scripted


def two(brief: PlanningContext) -> Plan:
    """Ask twice."""
    steps = tuple(Step(name=name, op=ModelCall(prompt=f"{brief.request.text} {name}")) for name in ("a", "b"))
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=("a", "b"))), output="all")


class Times(Planner):
    """Ask some number of times."""

    times: int = 2
    """How often."""

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan."""
        names = tuple(f"s{i}" for i in range(self.times))
        steps = tuple(Step(name=name, op=ModelCall(prompt=name)) for name in names)
        return Plan(steps=(*steps, Step(name="all", op=Join(), needs=names)), output="all")


class Longest(Merge):
    """The longest answer."""

    def merge(self, branches: Sequence, task) -> Verdict:
        """Return it."""
        return Verdict(value=max((branch.result.text for branch in branches if branch.done), key=len), why="longest")


def client(*replies: str, **options: object) -> AsyncOrchestrator:
    said = [Reply(text=text, times=1) for text in replies] or [Reply(text="fine")]
    return AsyncOrchestrator(workers=[Scripted(said, slots=1)], **options)


@pytest.mark.parametrize(
    ("planner", "count"), [(two, 2), (Times, 2), (Times(times=5), 5), (f"{__name__}:two", 2), (lambda b: two(b), 2)]
)
async def test_planners(planner: object, count: int) -> None:
    async with client(*["x"] * count) as orchestrator:
        assert (await orchestrator.run("q", planner=planner)).value == ["x"] * count


@pytest.mark.parametrize("merge", [Longest, Longest(), lambda branches, task: max(b.result.text for b in branches)])
async def test_merges(merge: object) -> None:
    async with client("a", "ccc", "bb") as orchestrator:
        answer = await orchestrator.run("q", planner="sample", n=3, merge=merge)
    assert answer.answer == "ccc"


async def test_a_function_ranks() -> None:
    async with client("first", "second") as orchestrator:
        answer = await orchestrator.run("q", planner=two, policies=[lambda step, view: -ord(step.plan.name[0])])
    assert answer.value == ["second", "first"], "b goes before a"


async def test_a_function_verifies(tmp_path) -> None:
    def even(answer: object) -> bool:
        return int(str(answer)) % 2 == 0

    path = tmp_path / "j.plait"
    async with client("answer: 3", "answer: 4", "answer: 3", journal=path) as orchestrator:
        answer = await orchestrator.run("q", planner="sample", n=3, merge="best-of", verify=even)
        assert (answer.answer, answer.verified) == ("4", True)
        plugins = orchestrator.plugins
    assert replay(path, plugins).divergence is None


def is_four(answer: object) -> bool:
    """Whether it is four."""
    return answer == "4"


async def test_what_can_be_imported_is_found_by_another_process(tmp_path) -> None:
    path = tmp_path / "j.plait"
    async with client("answer: 4", "answer: 4", journal=path) as orchestrator:
        answer = await orchestrator.run("q", planner="sample", n=2, verify=is_four, merge=Longest)
        assert answer.verified
    assert replay(path, Plugins()).divergence is None


async def test_two_functions_of_one_name_stay_two() -> None:
    async with client("a", "b", "a", "b") as orchestrator:
        said = [
            (await orchestrator.run("q", planner="sample", n=2, merge=lambda branches, task, word=word: word)).value
            for word in ("one", "two")
        ]
    assert said == ["one", "two"]


@pytest.mark.parametrize("given", [{"planner": 3}, {"policies": [Longest]}, {"planner": Policy}, {"verify": "is_four"}])
async def test_what_is_none_is_refused(given: dict) -> None:
    async with client() as orchestrator:
        with pytest.raises(PluginError):
            await orchestrator.run("q", **given)


@pytest.mark.parametrize(("judge", "verdict"), [(bool, True), (str.isdigit, False)])
async def test_a_built_in_function_judges(judge: object, verdict: bool) -> None:
    async with client("answer: yes") as orchestrator:
        assert (await orchestrator.run("q", verify=judge)).verified is verdict


def test_plugins_that_are_handed_over_again_and_again() -> None:
    plugins = Plugins()
    classes = [type("Same", (Times,), {"times": i, "__annotations__": {"times": int}}) for i in range(5)]
    names = [plugins.register("planner", "here:Same", cls) for cls in classes]
    assert names == ["here:Same", "here:Same#1", "here:Same#2", "here:Same#3", "here:Same#4"]
    assert [plugins.class_of("planner", name) for name in names] == classes


def test_not_every_choice_of_options_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.runtime.plugins.loader._MOST_MADE", 3)
    plugins = Plugins()
    made = [plugins.planner(Plugin(name="sample", options={"n": n})) for n in range(1, 6)]
    assert plugins.planner(Plugin(name="sample", options={"n": 5})) is made[-1]
    again = plugins.planner(Plugin(name="sample", options={"n": 1}))
    assert again == made[0] and again is not made[0]


@pytest.mark.parametrize(
    ("fn", "right"),
    [
        (lambda answer, want="7": answer == want, True),  # a value bound to a lambda in a loop
        (lambda answer, task: task.text == "?" and answer == "7", True),
        (lambda answer, task=None: task is not None, True),
        (lambda answer, *, want="8": answer == want, False),
        (lambda answer, *rest: not rest, True),
    ],
)
def test_a_verifier_gets_the_task_only_where_it_asks_for_it(fn: Callable[..., object], right: bool) -> None:
    assert verified(Plain, fn)(text="?").verify("7") is right
