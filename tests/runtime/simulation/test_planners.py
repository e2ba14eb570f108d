"""Planners in virtual time, with a function in the place of the model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from plait.core.events import Job
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, ModelCall, Plugin, Text, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import Host, LatencyModel, SimReport, simulate
from tests.machine.invariants import check_invariants
from tests.planners import countdown_model as model

STEADY = Host("a", slots=64, decode_rate=100.0, prefill_rate=1e12)


def countdown(job: Job, rng: Random) -> Result:
    """A perfect player; a token is a word."""
    assert isinstance(job.op, ModelCall)
    words = " ".join(part.text for part in job.op.prompt if isinstance(part, Text)).split()
    said = model.answer(words).split()
    stops = [i for i, word in enumerate(said) if word in job.op.sampling.stop]
    said = said[: stops[0] + 1] if stops else said
    return Result(value=" ".join(said), usage=Usage(prompt=len(words), completion=len(said)))


def solve(slots: int) -> SimReport:
    request = Request(
        text="3 5 7 11 -> 24",
        task=Plugin(name="countdown"),
        planner=Plugin(name="threads", options={"n": 8, "early": False}),
    )
    hosts = [Host("a", slots=slots, decode_rate=100.0, prefill_rate=1e12)]
    report = simulate(request, hosts=hosts, outcome=countdown, check=check_invariants)
    task = Plugins().task(request.task, request.text)
    assert report.status == "done" and report.result is not None
    assert task.verify(task.extract(report.result.text)) is True
    return report


def test_threads_solve_a_puzzle_and_their_time_is_that_of_the_longest_chain() -> None:
    report = solve(slots=64)
    children = [span for span in report.spans if "child-" in span.step]
    assert len(children) >= 4
    assert len({span.start for span in children if "round" not in span.step}) < len(children), "they start together"
    assert report.makespan == pytest.approx(report.critical_path_tokens / 100.0)
    assert report.makespan < report.usage.completion / 100.0 / 2


def test_with_one_slot_threads_take_the_time_of_all_their_tokens() -> None:
    report = solve(slots=1)
    assert report.makespan == pytest.approx(report.usage.completion / 100.0)
    assert report.busy["a"] == pytest.approx(1.0)


class _Lines:
    """Each whole line is a call of a tool; the end joins them."""

    def __init__(self) -> None:
        self.rest, self.names = "", list[str]()

    def feed(self, delta: str) -> Sequence[Plan]:
        *lines, self.rest = (self.rest + delta).split("\n")
        self.names += lines
        return [Plan(steps=(Step(name=line, op=ToolCall(tool="look")),)) for line in lines]

    def close(self, result: Result) -> Plan | None:
        return Plan(steps=(Step(name="all", op=Join(), needs=tuple(self.names)),), output="all")


class Lines(Planner):
    """A plan that is run line by line while it is being written (LLMCompiler's way)."""

    def start(self, brief: PlanningContext) -> Plan:
        op = ModelCall(prompt="plan", stream=True, sampling=Sampling(max_tokens=100))
        return Plan(steps=(Step(name="plan", op=op, expands=True),), output="plan")

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        return _Lines()


def lines(job: Job, rng: Random) -> Result:
    if isinstance(job.op, ModelCall):
        return Result(value="s-1\ns-2\ns-3\ns-4\n", usage=Usage(prompt=1, completion=16))  # four tokens a line
    return Result(value=job.step[-1])


@pytest.mark.parametrize("planning", [0.0, 0.5])
def test_steps_of_a_plan_start_while_it_is_still_being_written(planning: float) -> None:
    """A line is there every 0.04 s and its call takes 1 s; a reader that takes its time puts off every call by it."""
    latency = LatencyModel(call=1.0, chunk=4, planner=planning)
    report = simulate(
        Request(), planner=Lines(), hosts=[STEADY], outcome=lines, latency=latency, check=check_invariants
    )
    assert report.result is not None and report.result.value == ["1", "2", "3", "4"]
    calls = {span.step: span.start for span in report.spans if span.kind == "call"}
    assert calls == {f"sim:plan/s-{i}": pytest.approx(0.04 * i + planning) for i in (1, 2, 3, 4)}
    assert report.makespan == pytest.approx(0.16 + planning + 1.0)


def test_a_planner_that_breaks_fails_its_step_and_not_the_simulation() -> None:
    class Broken(Lines):
        def reader(self, step: Step, brief: PlanningContext) -> Reader:
            raise OSError("no such dialect")

    report = simulate(Request(), planner=Broken(), hosts=[STEADY], outcome=lines, check=check_invariants)
    assert report.status == "failed"
    assert report.failure is not None and "Broken raised OSError" in report.failure.message
