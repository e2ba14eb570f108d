"""The policies `consensus`, `critical-path` and `fifo`, in the machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from plait.core.events import Job
from plait.core.interfaces import Planner, PlanningContext, Reader
from plait.core.ops import Join, ModelCall, Plugin
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from tests.planners.driving import drive


class Given(Planner):
    """A plan as it is; a step that expands becomes one more think step."""

    steps: tuple[Step, ...]

    def start(self, brief: PlanningContext) -> Plan:
        return Plan(steps=self.steps, output=self.steps[-1].name)

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        class Inner:
            def feed(self, delta: str) -> Sequence[Plan]:
                return ()

            def close(self, result: Result) -> Plan:
                return Plan(steps=(think("inner"),), output="inner")

        return Inner()


def think(name: str, tokens: int = 10, **more: object) -> Step:
    return Step.model_validate(
        {"name": name, "op": ModelCall(prompt=name, sampling=Sampling(max_tokens=tokens)).model_dump(), **more}
    )


def vote(*needs: str, name: str = "vote", **more: object) -> Step:
    op = {"merge": {"name": "majority"}, "on_failure": "best-effort", **more}
    return Step(name=name, op=Join.model_validate(op), needs=needs)


def request(*policies: str) -> Request:
    return Request(text="?", policies=tuple(Plugin(name=name) for name in policies))


def yes(prompt: list[str], job: Job) -> str:
    return "yes"


SIX = [f"s{i}" for i in range(6)]


def test_the_rest_is_stopped_with_the_counts() -> None:
    steps = (*(think(name) for name in SIX), vote(*SIX))
    outcome = drive(Given(steps=steps), request("consensus"), yes)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "yes"
    reason = "vote is decided: 4 of 6 branches done, 2 out cannot change it"
    assert outcome.cancelled == {"r:s4": reason, "r:s5": reason}


def test_branches_that_never_started_are_stopped_too() -> None:
    steps = (*(think(name) for name in SIX), vote(*SIX))
    outcome = drive(Given(steps=steps), request("consensus"), yes, slots=1)
    assert sorted(outcome.cancelled) == ["r:s4", "r:s5"] and len(outcome.contexts) == 4


def test_a_failure_can_decide_too() -> None:
    def model(prompt: list[str], job: Job) -> str | Failure:
        return Failure(kind="WorkerError", message="no") if job.step in ("r:s2", "r:s3") else "yes"

    names = SIX[:5]
    steps = (*(think(name) for name in names), vote(*names))
    outcome = drive(Given(steps=steps), request("consensus"), model)
    assert list(outcome.cancelled) == ["r:s4"]


def test_a_branch_that_somebody_else_reads_is_left_alone() -> None:
    steps = (*(think(name) for name in SIX), vote(*SIX), think("note", needs=("s5",)), vote("vote", "note", name="end"))
    outcome = drive(Given(steps=steps), request("consensus"), yes)
    assert list(outcome.cancelled) == ["r:s4"] and "r:note" in outcome.contexts


@pytest.mark.parametrize("more", [{"on_failure": "all"}, {"on_failure": "quorum", "quorum": 5}])
def test_joins_that_could_fail_by_it_are_left_alone(more: dict[str, object]) -> None:
    steps = (*(think(name) for name in SIX), vote(*SIX, **more))
    outcome = drive(Given(steps=steps), request("consensus"), yes)
    assert outcome.finish.status == "done"
    assert len(outcome.contexts) == (6 if more["on_failure"] == "all" else 5)


def test_a_branch_that_expanded_counts_when_its_value_is_there() -> None:
    names = ["s0", "s1", "s2"]
    steps = (*(think(name, expands=True) for name in names), vote(*names))
    outcome = drive(Given(steps=steps), request("consensus"), yes)
    assert outcome.finish.status == "done"
    assert "r:s1/inner" in outcome.contexts and "r:s2/inner" not in outcome.contexts


def test_without_the_policy_all_branches_run() -> None:
    steps = (*(think(name) for name in SIX), vote(*SIX))
    assert len(drive(Given(steps=steps), request(), yes).contexts) == 6


# --- order -----------------------------------------------------------------------------------------------------------

CHAIN = (
    think("short"),
    think("long", tokens=50),
    think("first", tokens=20),
    think("second", tokens=60, needs=("first",)),
    vote("short", "long", "second"),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fifo", ["short", "long", "first", "second"]), ("critical-path", ["first", "second", "long", "short"])],
)
def test_order(policy: str, order: list[str]) -> None:
    outcome = drive(Given(steps=CHAIN), request(policy), yes, slots=1)
    assert [step.removeprefix("r:") for step in outcome.prompts] == order
