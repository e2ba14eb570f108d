"""Random plans under random budgets, in virtual time: no limit is passed by more than is said, and what fits is not
held up."""

from __future__ import annotations

import re
from random import Random

import pytest

from plait.core.budget import Budget
from plait.core.events import Dispatch, Event, Submitted
from plait.core.ops import Join, ModelCall, Text
from plait.core.plan import Plan, Step
from plait.core.request import Request
from plait.core.result import Price, Result, Usage
from plait.core.sampling import Sampling
from plait.machine import Machine
from plait.runtime.plugins.loader import Plugins
from plait_research.simulation.simulator import Host, LatencyModel, SimReport, simulate
from tests.machine.invariants import check_invariants

REPORTS, SLOTS, RATE, LATENCY = 8, 4, 100.0, 0.02
LATE = REPORTS + int(RATE * LATENCY) + 1
"""Tokens that one attempt may pass a limit by: a report, and what it generates until it has stopped."""
PRICE = Price(input=2.0, output=8.0)


def random_plan(rng: Random) -> Plan:
    """Rounds of think steps, each round over the join before it."""
    steps: list[Step] = []
    before: tuple[str, ...] = ()
    for i in range(rng.randint(1, 3)):
        names = [f"t{i}-{k}" for k in range(rng.randint(1, 8))]
        for name in names:
            op = ModelCall(
                prompt=(Text(text="x" * rng.randint(1, 400)),), sampling=Sampling(max_tokens=rng.choice([64, 512]))
            )
            inner = Budget(tokens=rng.randint(5, 60)) if rng.random() < 0.1 else None
            steps.append(Step(name=name, op=op, needs=before, budget=inner))
        steps.append(Step(name=f"j{i}", op=Join(on_failure="any-end"), needs=tuple(names)))
        before = (f"j{i}",)
    return Plan(steps=tuple(steps), output=before[0])


def played(seed: int, budget: Budget, reports: int = REPORTS) -> tuple[SimReport, list[Event], list[list[object]]]:
    rng = Random(seed)
    plan = random_plan(rng)
    hosts = [Host(f"h{i}", SLOTS, decode_rate=RATE, reports=reports, price=PRICE) for i in range(rng.randint(1, 2))]
    events: list[Event] = []
    answers: list[list[object]] = []

    def outcome(job: object, _: Random) -> Result:
        length = 4 + int(Random(f"{seed}/{job.step}").lognormvariate(3.0, 0.5))  # type: ignore[attr-defined]
        return Result(value="w " * length, usage=Usage(completion=length))

    def watch(event: Event, actions: list[object]) -> None:
        events.append(event)
        answers.append(list(actions))

    report = simulate(
        Request(budget=budget), plan=plan, hosts=hosts, outcome=outcome, seed=seed, check=check_invariants, watch=watch,  # type: ignore[arg-type]
        latency=LatencyModel(abort_latency=LATENCY),
    )  # fmt: skip
    return report, events, answers


def used(report: SimReport) -> dict[str, float]:
    usage = report.usage
    return {
        "tokens": usage.completion,
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "cost": usage.cost,
    }


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("limit", ["tokens", "prompt_tokens", "total_tokens", "cost"])
@pytest.mark.parametrize("seed", range(12))
def test_no_limit_is_passed_by_more_than_a_report_of_each_live_attempt(seed: int, limit: str, strict: bool) -> None:
    whole = used(played(seed, Budget())[0])
    rng = Random(f"{seed}/{limit}")
    most = whole[limit] * rng.uniform(0.05, 1.1)
    most = most if limit == "cost" else int(most)
    budget = Budget.model_validate({limit: most, "strict": strict})
    report, events, answers = played(seed, budget)
    late = 0 if strict or limit == "prompt_tokens" else LATE * SLOTS * 2
    each = PRICE.output / 1e6 if limit == "cost" else 1
    assert used(report)[limit] <= most + late * each + 1e-12
    if most < whole[limit]:
        assert used(report)[limit] < whole[limit]
        # A long prompt may be refused in a round whose join does without it, and the shorter ones of later rounds fit.
        assert report.status in ("partial", "failed") or limit in ("prompt_tokens", "total_tokens")
        if report.status != "done":
            assert report.failure is not None and re.search(f"raise `({limit}|tokens)`", report.failure.message)
    machine = Machine(Plugins(), cancel_timeout=10.0)
    assert [machine.handle(event) for event in events] == answers, "the same events, the same actions"


@pytest.mark.parametrize("limit", ["tokens", "total_tokens", "cost"])
@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_fits_is_not_held_up(seed: int, limit: str) -> None:
    free = played(seed, Budget())[0]
    if free.status != "done":  # a step's own budget cuts it, as it will under any other
        pytest.skip("it is cut by a budget of its own")
    most = used(free)[limit] * 1.25 + (20 if limit != "cost" else 20 * PRICE.output / 1e6)
    report = played(seed, Budget.model_validate({limit: most if limit == "cost" else int(most)}))[0]
    assert (report.status, used(report)) == ("done", used(free))
    assert report.makespan <= 1.1 * free.makespan


def test_a_worker_that_reports_nothing_is_held_to_what_it_may_generate() -> None:
    for seed in range(6):
        report, events, _ = played(seed, Budget(tokens=90), reports=0)
        assert report.usage.completion <= 90
        assert not any(event.kind == "progressed" for event in events)


def test_the_same_prompt_for_many_branches_is_known_before_any_is_sent() -> None:
    """640,000 prompt tokens of 32 branches were not seen by any limit."""
    text = "word " * 4_000
    steps = [Step(name=f"b{i}", op=ModelCall(prompt=text, sampling=Sampling(max_tokens=64))) for i in range(32)]
    plan = Plan(
        steps=(*steps, Step(name="j", op=Join(on_failure="any-end"), needs=tuple(s.name for s in steps))), output="j"
    )
    for budget in (Budget(prompt_tokens=16_384), Budget(total_tokens=16_384)):
        sent: list[Dispatch] = []
        report = simulate(
            Request(budget=budget), plan=plan, hosts=[Host("h", 64, decode_rate=RATE)],
            watch=lambda _, actions, sent=sent: sent.extend(a for a in actions if isinstance(a, Dispatch)),
        )  # fmt: skip
        assert len(sent) == 3 and report.usage.prompt == 15_000
        assert report.usage.prompt + report.usage.completion <= 16_384
        assert report.status == "partial" and report.failure is not None
        assert "are left of 16384" in report.failure.message or "do not fit" in report.failure.message


def test_submitted_budgets_are_written_and_read_again() -> None:
    request = Request(budget=Budget(total_tokens=5, depth=1, turns=2, strict=True))
    event = Submitted(at=0.0, run="r", request=request, plan=random_plan(Random(1)))
    assert Request.model_validate_json(event.request.model_dump_json()) == request
    assert Request.model_validate_json('{"budget": {"tokens": 5}}').budget == Budget(tokens=5), (
        "as older versions wrote it"
    )
