"""What holds of every simulated run: the same arguments give the same report, and no schedule beats the lower bound."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, strategies as st

from plait.apps.common.graph import critical_path
from plait.core.events import Job
from plait.core.interfaces import Policy
from plait.core.ops import Join, ModelCall, ToolCall
from plait.core.plan import Plan, Step
from plait.core.result import Failure, Result
from plait.core.sampling import Sampling
from plait.core.view import StepView, View
from plait_research.simulation.simulator import Host, LatencyModel, SimReport, WorkerFault, simulate, varied
from tests.machine.invariants import check_invariants


def lower_bound(plan: Plan, slots: int, weight: Callable[[Step], float]) -> float:
    """Return a time that no schedule of all steps on `slots` slots can beat, in the weight's unit: the larger of the
    critical path and the work (joins apart, which take no slot) divided by the slots (Graham, 1969).

    It bounds plans that run whole: a join that closes early, or a budget, can end a run before.
    """
    work = sum(weight(step) for step in plan.steps if not isinstance(step.op, Join))
    return max(critical_path(plan, weight).length, work / slots)


class Longest(Policy):
    """Longest way to the output first."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        return (-step.upward_rank,)


class Backwards(Policy):
    """An order of no merit."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        return (-float(int(step.plan.name[1:] or 0)),)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """DAGs of thinks and calls under one join of all."""
    steps: list[Step] = []
    for i in range(draw(st.integers(1, 10))):
        needs = tuple(step.name for step in steps if draw(st.integers(0, 3)) == 0)
        if draw(st.booleans()):
            tokens = draw(st.integers(1, 60))
            op = ModelCall(prompt="x", sampling=Sampling(max_tokens=tokens), stream=draw(st.booleans()))
        else:
            op = ToolCall(tool="f")
        steps.append(Step(name=f"s{i}", op=op, needs=needs))
    steps.append(Step(name="s99", op=Join(), needs=tuple(step.name for step in steps)))
    return Plan(steps=tuple(steps), output="s99")


RATES = {"steady": 100.0, "shared": lambda batch: 100.0 / batch, "saturating": lambda batch: 300.0 / (batch + 2.0)}
ALONE = {"steady": 100.0, "shared": 100.0, "saturating": 100.0}


@given(
    plans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(sorted(RATES)),
    st.sampled_from([None, Longest(), Backwards()]),
)
def test_no_policy_and_no_cluster_beats_the_lower_bound(
    plan: Plan, hosts: int, slots: int, rate: str, policy: Policy | None
) -> None:
    cluster = [Host(f"h{i}", slots, decode_rate=RATES[rate], prefill_rate=1e3) for i in range(hosts)]
    report = simulate(
        plan,
        hosts=cluster,
        policies=None if policy is None else [policy],
        latency=LatencyModel(call=0.1),
        check=check_invariants,
    )

    def least(step: Step) -> float:
        match step.op:
            case ModelCall(sampling=sampling):
                return sampling.max_tokens / ALONE[rate]
            case ToolCall():
                return 0.1
            case _:
                return 0.0

    assert report.status == "done"
    assert report.makespan >= lower_bound(plan, hosts * slots, least) * (1 - 1e-9)
    assert report.usage.completion == sum(
        step.op.sampling.max_tokens for step in plan.steps if isinstance(step.op, ModelCall)
    )
    assert sum(spell.waited + spell.ran for spell in report.waited_for) <= report.makespan * (1 + 1e-9)
    for name, share in report.busy.items():
        assert 0.0 <= share <= 1.0 + 1e-9, name


def flaky(job: Job, rng: Random) -> Result | Failure:
    if rng.random() < 0.2:
        return Failure(kind="ToolError", message="down", retryable=True)
    return varied(0.5)(job, rng)


@given(plans(), st.integers(0, 3), st.lists(st.floats(0.01, 1.0), max_size=3))
def test_under_faults_and_failures_every_run_ends_and_ends_the_same_way(
    plan: Plan, seed: int, times: list[float]
) -> None:
    hosts = [Host(f"h{i}", 2, decode_rate=RATES["saturating"], prefill_rate=1e3) for i in range(3)]
    faults = [WorkerFault(at, f"h{i}", down_for=0.1 if i else None) for i, at in enumerate(times)]
    reports = [
        simulate(plan, hosts=hosts, outcome=flaky, faults=faults, seed=seed, check=check_invariants) for _ in range(2)
    ]
    assert reports[0] == reports[1]
    assert reports[0].status in ("done", "failed")
    _slots_are_never_shared(reports[0], 2)


def _slots_are_never_shared(report: SimReport, slots: int) -> None:
    for host in report.busy:
        changes = sorted(
            change
            for span in report.spans
            if span.host == host and span.end > span.start
            for change in ((span.start, 1), (span.end, -1))
        )
        running = 0
        for _, change in changes:
            running += change
            assert running <= slots


def wide(n: int) -> Plan:
    steps = [Step(name=f"s{i}", op=ModelCall(prompt="x", sampling=Sampling(max_tokens=200))) for i in range(n)]
    return Plan(steps=(*steps, Step(name="s99999", op=Join(), needs=tuple(s.name for s in steps))), output="s99999")


def test_another_seed_gives_another_run_and_the_same_seed_the_same() -> None:
    made = [simulate(wide(20), outcome=varied(), seed=seed) for seed in (1, 1, 2)]
    assert made[0] == made[1]
    assert made[0].makespan != made[2].makespan


def test_a_step_meets_the_same_fate_under_every_policy() -> None:
    hosts = [Host("h", slots=3)]
    made = [simulate(wide(20), outcome=varied(), hosts=hosts, policies=policies) for policies in ([], [Backwards()])]
    assert [span.step for span in made[0].spans] != [span.step for span in made[1].spans]
    tokens = [{span.step: span.tokens for span in report.spans} for report in made]
    assert tokens[0] == tokens[1]


def test_hash_seeds_change_nothing(root) -> None:
    code = (
        "from tests.runtime.simulation.test_properties import wide, flaky\n"
        "from plait_research.simulation.simulator import *\n"
        "hosts = [Host(f'h{i}', 3) for i in range(3)]\n"
        "print(simulate(wide(40), hosts=hosts, outcome=flaky, faults=[WorkerFault(0.3, 'h1', 0.2)]).model_dump_json())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(made) == 1 and b"lost" in made.pop()


def test_the_longest_way_first_beats_arrival_where_it_matters() -> None:
    """Two slots; six short steps come before a chain of three long ones. In order of arrival the chain starts after
    3 × 1 s and ends at 6 s; by longest way it starts at once, and the short ones fill the other slot: 6 × 1 s."""
    short = [Step(name=f"s{i}", op=ModelCall(prompt="x", sampling=Sampling(max_tokens=100))) for i in range(6)]
    chain = [
        Step(
            name=f"s{i}",
            op=ModelCall(prompt="x", sampling=Sampling(max_tokens=200)),
            needs=(f"s{i - 1}",) if i > 10 else (),
        )
        for i in (10, 11, 12)
    ]
    names = tuple(step.name for step in (*short, chain[-1]))
    plan = Plan(steps=(*short, *chain, Step(name="s99", op=Join(), needs=names)), output="s99")
    hosts = [Host("h", slots=2, decode_rate=100.0, prefill_rate=1e12)]
    arrival = simulate(plan, hosts=hosts)
    longest = simulate(plan, hosts=hosts, policies=[Longest()])
    assert arrival.makespan == pytest.approx(9.0)
    assert longest.makespan == pytest.approx(6.0)
    assert longest.makespan == pytest.approx(
        lower_bound(plan, 2, lambda step: step.op.sampling.max_tokens / 100 if isinstance(step.op, ModelCall) else 0.0)
    )


def test_a_thousand_hosts_and_ten_thousand_steps() -> None:
    report = simulate(wide(10_000), hosts=[Host(f"h{i:04}", slots=8) for i in range(1_024)], outcome=varied())
    assert report.status == "done"
    assert report.steps == 10_001
    assert len({span.host for span in report.spans}) == 1_024
    assert report.wait_max > 0
