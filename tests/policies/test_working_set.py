"""Policy `working-set`: which programs are active, what waits, and that all end, on simulated engines."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from experiments.programs import workload
from experiments.programs.workload import Case, play
from plait.core.events import Job, Submitted, Succeeded, WorkerUp
from plait.core.interfaces import Defer, Policy
from plait.core.ops import Join, ModelCall, Plugin, Ref, ToolCall
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Result, Usage
from plait.core.sampling import Sampling
from plait.core.tools.tool import ToolSpec
from plait.core.view import ProgramView, StepView, View, WorkerView
from plait.machine import Machine
from plait.policies.schedule.working_set import WorkingSet, peak_tokens
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.latency import Host, LatencyModel, WorkerFault
from plait_research.simulation.workload import WorkloadReport, simulate_workload
from tests.machine.invariants import check_invariants

SPEC = (Plugin(name="working-set"),)


def agent(turns: int, prompt: int = 400) -> Plan:
    """An agent whose turns each read a tool's result of 400 tokens."""
    steps = [Step(name="turn-0", op=ModelCall(prompt="x" * 4 * prompt, sampling=Sampling(max_tokens=20)))]
    for i in range(1, turns):
        steps.append(Step(name=f"call-{i}", op=ToolCall(tool="shell", args={"i": i}), needs=(f"turn-{i - 1}",)))
        op = ModelCall(after=f"turn-{i - 1}", prompt=(Ref(step=f"call-{i}"),), sampling=Sampling(max_tokens=20))
        steps.append(Step(name=f"turn-{i}", op=op))
    return Plan(steps=tuple(steps), output=f"turn-{turns - 1}")


def votes(n: int) -> Plan:
    steps = [Step(name=f"s{i}", op=ModelCall(prompt="y" * 4_000, sampling=Sampling(max_tokens=20))) for i in range(n)]
    return Plan(steps=(*steps, Step(name="all", op=Join(), needs=tuple(s.name for s in steps))), output="all")


def run(
    plans: list[Plan],
    arrivals: list[float] | None = None,
    *,
    cache: int = 4_000,
    engines: int = 1,
    policies: tuple[Plugin, ...] = SPEC,
    groups: tuple[str, ...] = ("",),
    faults: tuple[WorkerFault, ...] = (),
    plugins: Plugins | None = None,
    session: str = "",
) -> WorkloadReport:
    def outcome(job: Job, rng: object) -> Result:
        if isinstance(job.op, ModelCall):
            return Result(value="", usage=Usage(completion=20), finish="length")
        return Result(value=f"{job.run[-3:]:>4}" * 400)

    requests = [
        Request(
            text=str(i),
            planner=Plugin(name="fixed", options={"graph": plan.model_dump(mode="json")}),
            policies=policies,
            fairness_group=groups[i % len(groups)],
            session=session,
        )
        for i, plan in enumerate(plans)
    ]
    hosts = [
        Host(f"e{i}", 8, serves=("think",), cache_tokens=cache, prefill_rate=4_000.0, blocking=True)
        for i in range(engines)
    ]
    return simulate_workload(
        requests,
        arrivals or [0.0] * len(plans),
        hosts=[*hosts, Host("tools", 99, serves=("call",))],
        outcome=outcome,
        latency=LatencyModel(call=lambda job, rng: rng.expovariate(2.0)),
        tools=[ToolSpec(name="shell", parameters={"type": "object"})],
        faults=faults,
        plugins=plugins,
        check=check_invariants,
    )


def program(tokens: int, growth: int) -> ProgramView:
    return ProgramView("p", 1, "e0", tokens, growth, 0, (), 0.0, 1.0, 1.0)


def test_the_peak_is_that_of_programs_that_grow_alike_and_leave_at_their_full_size() -> None:
    assert peak_tokens([]) == 0
    assert peak_tokens([program(100, 50)]) == 150
    # After 10 tokens more the first leaves at 110, and the second grows alone to 60: 110 + 20 are the most.
    assert peak_tokens([program(100, 10), program(10, 50)]) == 130
    assert peak_tokens([program(10, 50), program(10, 50)]) == 120


@pytest.mark.parametrize("known", [True, False])
def test_agents_whose_contexts_do_not_fit_read_little_again_and_end_sooner(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(workload.CASES, "small", Case(24, cache=120_000, known=known))
    free, admitted = play("small", "", 5), play("small", "working-set", 5)
    assert free.reread > 2.5 and admitted.reread < 1.15
    assert admitted.makespan < 0.7 * free.makespan
    assert admitted.p99 < free.p99


def test_a_token_limit_that_no_answer_reaches_admits_no_program() -> None:
    def long(step: Step) -> Step:
        limit = {"sampling": Sampling(max_tokens=30_000)}
        return step.model_copy(update={"op": step.op.model_copy(update=limit)}) if step.op.kind == "think" else step

    short = [agent(6) for _ in range(12)]
    limited = [plan.model_copy(update={"steps": tuple(map(long, plan.steps))}) for plan in short]
    reports = [run(plans, cache=8_000) for plans in (short, limited)]
    assert reports[0].prompt_computed == reports[1].prompt_computed < 1.15 * reports[1].prompt_unique


def test_several_engines_share_the_programs_and_none_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workload.CASES, "small", Case(40, turns=8, cache=100_000, engines=2))
    free, admitted = play("small", "", 5), play("small", "working-set", 5)
    assert admitted.reread < 1.15 < free.reread
    assert admitted.makespan < 0.8 * free.makespan


class Counted(WorkingSet):
    """Counts what it is asked."""

    asked: Counter[str] = Counter()

    def admit(self, step: StepView, worker: WorkerView, view: View) -> object:
        self.asked[step.run] += 1
        return super().admit(step, worker, view)


class Registry(Plugins):
    """Finds one policy."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy

    def policy(self, spec: Plugin) -> Policy:
        return self._policy


def test_it_is_not_asked_where_everything_fits_and_changes_nothing() -> None:
    counted = Counted()
    plans = [agent(4)] * 6
    fits = run(plans, cache=100_000, plugins=Registry(counted))
    assert not counted.asked
    assert fits == run(plans, cache=100_000, policies=())
    run(plans, cache=4_000, plugins=Registry(counted))
    assert counted.asked


def test_steps_that_nothing_continues_are_no_programs() -> None:
    counted = Counted()
    report = run([votes(8)] * 6, cache=2_000, plugins=Registry(counted))
    assert report.done == 6 and not counted.asked


def test_a_program_larger_than_the_cache_runs_alone_without_waiting() -> None:
    alone = run([agent(20)], cache=2_000)
    assert alone.done == 1
    assert alone.wait.max < 0.1 and alone.makespan == run([agent(20)], cache=2_000, policies=()).makespan


def test_a_late_tenant_does_not_wait_for_all_programs_of_an_earlier_one() -> None:
    plans = [agent(8)] * 13
    groups = ("early",) * 12 + ("late",)
    report = run(plans, [0.0] * 12 + [0.5], groups=groups)
    assert report.done == 13
    one_group = run(plans, [0.0] * 12 + [0.5], groups=("all",))
    assert report.latency.p50 > 0 and one_group.done == 13
    assert report.latency.p90 <= one_group.latency.p90 * 1.2


class Never(Policy):
    """Admits nothing, ever."""

    def admit(self, step: StepView, worker: WorkerView, view: View) -> Defer:
        return Defer("never")


def test_a_policy_cannot_hold_the_last_program_that_could_run() -> None:
    report = run([agent(3)] * 4, plugins=Registry(Never()), cache=500)
    assert report.done == 4


class Raising(Policy):
    """Raises when it is asked."""

    def admit(self, step: StepView, worker: WorkerView, view: View) -> Defer:
        raise RuntimeError("which?")


def test_a_policy_that_raises_fails_its_run_and_no_other() -> None:
    report = run([agent(3)] * 4, plugins=Registry(Raising()), cache=500)
    assert report.failed == 4 and report.failure is not None and "which?" in report.failure.message


@given(
    turns=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    cache=st.sampled_from([300, 2_000, 5_000, 20_000]),
    engines=st.integers(1, 3),
    gap=st.sampled_from([0.0, 0.4, 2.0]),
    session=st.sampled_from(["", "s"]),
    groups=st.sampled_from([("",), ("a", "b"), ("a", "")]),
    fault=st.sampled_from([(), (WorkerFault(1.0, "e0", 1.0),), (WorkerFault(0.3, "e0", 5.0),)]),
)
def test_every_program_ends_whatever_the_sizes_arrivals_and_faults(
    turns: list[int],
    cache: int,
    engines: int,
    gap: float,
    session: str,
    groups: tuple[str, ...],
    fault: tuple[WorkerFault, ...],
) -> None:
    """The machine's invariants hold after every event: no step waits for room while nothing could make any."""
    plans = [agent(each) for each in turns]
    options = {"cache": cache, "engines": engines, "groups": groups, "faults": fault, "session": session}
    report = run(plans, [gap * i for i in range(len(plans))], **options)  # type: ignore[arg-type]
    assert report.done == len(plans), report.failure
    free = run(plans, [gap * i for i in range(len(plans))], **options, policies=())  # type: ignore[arg-type]
    assert report.latency.p99 <= 2 * free.latency.p99 + 1.0


def turn(machine: Machine, run: str, at: float, prompt: int, session: str = "s", tenant: str = "") -> None:
    """Run one model call of a session to its end."""
    step = Step(name="turn", op=ModelCall(prompt="x" * 4 * prompt, sampling=Sampling(max_tokens=20)))
    request = Request(policies=SPEC, session=session, tenant=tenant)
    plan = Plan(steps=(step,), output="turn")
    (sent,) = [a for a in machine.handle(Submitted(at=at, run=run, request=request, plan=plan)) if a.kind == "dispatch"]
    usage = Usage(prompt=prompt, completion=20)
    machine.handle(Succeeded(at=at + 1, attempt=sent.job.attempt, result=Result(value="", usage=usage)))
    check_invariants(machine)


def test_a_session_is_a_program_from_its_second_run_on_and_until_it_idles_for_long() -> None:
    machine = Machine(Plugins())
    machine.handle(WorkerUp(at=0, worker="e0", slots=4, serves=("think",), cache_tokens=1_000, block=16))

    def sizes() -> dict[str, int]:
        return {each.name: each.tokens for each in machine.view().programs("e0")}

    turn(machine, "r1", 0, 300)
    assert sizes() == {}, "a conversation of one turn may be over"
    turn(machine, "r2", 10, 400)
    turn(machine, "r3", 20, 500)
    assert sizes() == {"/s": 520}
    turn(machine, "t1", 21, 300, tenant="b")
    turn(machine, "t2", 22, 300, tenant="b")
    assert sizes() == {"/s": 520, "b/s": 320}, "another tenant's session of the same name"
    turn(machine, "d1", 23, 300, session="~derived")
    turn(machine, "d2", 24, 300, session="~derived")
    assert len(sizes()) == 2
    turn(machine, "r4", 10_000, 990)  # the cache is short now, so sessions that have been idle for long are dropped
    assert list(sizes()) == ["/s"]
