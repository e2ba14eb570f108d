"""Policies that go by predicted time: `predictive` on engines of unequal speed, `deadline` over runs of one share."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from plait.core import ModelCall, Plan, Plugin, Request, Sampling, Step, Text
from plait.core.budget import Budget
from plait.machine.run_statistics import DecodeSpeed
from plait_research.simulation.latency import Host, varied
from plait_research.simulation.workload import at_rate, simulate_workload
from tests.machine.invariants import check_invariants


def request(*policies: str | Plugin, tokens: int = 100, seconds: float | None = None, text: str = "why?") -> Request:
    step = Step(name="one", op=ModelCall(prompt=(Text(text=text),), sampling=Sampling(max_tokens=tokens)))
    plan = Plan(steps=(step,), output="one")
    return Request(
        planner=Plugin(name="fixed", options={"graph": plan.model_dump(mode="json")}),
        policies=tuple(each if isinstance(each, Plugin) else Plugin(name=each) for each in policies),
        fairness_group="all",
        budget=Budget(seconds=seconds),
    )


def unequal() -> list[Host]:
    return [Host("quick", 4, decode_rate=100.0), Host("slow", 4, decode_rate=10.0)]


def test_predictive_leaves_a_slow_engine_for_when_the_quick_one_is_long_taken() -> None:
    times = at_rate(120, 2.0, seed=3)
    p99 = {
        policy: simulate_workload(
            request(policy), times, hosts=unequal(), outcome=varied(0.5), seed=1, check=check_invariants
        ).latency.p99
        for policy in ("round-robin", "least-loaded", "predictive")
    }
    assert p99["predictive"] < 0.6 * min(p99["round-robin"], p99["least-loaded"])


def test_predictive_uses_all_of_equal_engines() -> None:
    hosts = [Host(f"h{i}", 4, decode_rate=50.0) for i in range(3)]
    report = simulate_workload(request("predictive"), [0.1 * i for i in range(60)], hosts=hosts, check=check_invariants)
    assert report.idlest > 0.7 * report.busiest


def test_a_worker_of_unknown_pace_is_not_left_out_when_the_others_are_full() -> None:
    hosts = [Host("a", 1, decode_rate=50.0), Host("new", 1, decode_rate=50.0)]
    report = simulate_workload(
        request("predictive"), [0.0, 2.5, 2.6, 2.7, 2.8, 2.9], hosts=hosts, check=check_invariants
    )
    assert report.idlest > 0.3


def test_of_two_runs_that_wait_the_one_with_less_time_goes_first_and_both_make_it() -> None:
    hosts = [Host("only", 1, decode_rate=100.0)]

    def done(policy: str) -> int:
        asked = [request(policy, seconds=each) for each in (60.0, 60.0, 3.5)]
        return simulate_workload(asked, [0.0, 0.01, 0.02], hosts=hosts, check=check_invariants).done

    assert done("fifo") == 3
    asked = [request("deadline", seconds=each) for each in (60.0, 60.0, 2.5)]
    assert simulate_workload(asked, [0.0, 0.01, 0.02], hosts=hosts, check=check_invariants).done == 3
    asked = [request("fifo", seconds=each) for each in (60.0, 60.0, 2.5)]
    assert simulate_workload(asked, [0.0, 0.01, 0.02], hosts=hosts, check=check_invariants).done == 2


def test_with_ageing_nothing_waits_for_ever() -> None:
    """A patient run under a stream of urgent ones, which take all there is: with ageing it still has its turn."""
    hosts = [Host("only", 1, decode_rate=100.0)]
    urgent = 80

    def latest(ageing: float) -> float:
        policy = Plugin(name="deadline", options={"ageing": ageing})
        kinds = [request(policy, seconds=300.0) for _ in range(urgent)]
        kinds.insert(1, request(policy, seconds=1000.0))
        times = [0.0, 0.001, *(0.95 * i for i in range(1, urgent))]
        return simulate_workload(kinds, times, hosts=hosts, check=check_invariants).latency.max

    assert latest(20.0) < 0.8 * latest(0.0)


def test_a_pace_is_learned_over_numbers_of_attempts() -> None:
    pace = DecodeSpeed()
    assert pace.seconds_per_token(1) is None
    for n in (1, 2, 4, 8, 16, 4, 2, 12, 16, 8):
        pace.add(n, 100 * (0.01 + 0.001 * n), 100)
    assert pace.seconds_per_token(1) == pytest.approx(0.011, rel=0.15)
    assert pace.seconds_per_token(16) == pytest.approx(0.026, rel=0.1)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(1e-6, 1e3), st.integers(0, 5000)), max_size=60))
def test_a_pace_is_positive_and_grows_with_the_number_of_attempts(ends: list[tuple[int, float, int]]) -> None:
    pace = DecodeSpeed()
    for beside, seconds, tokens in ends:
        pace.add(beside, seconds, tokens)
    times = [pace.seconds_per_token(n) for n in (1, 2, 10, 1000)]
    if times[0] is None:
        assert all(tokens < 8 for _, _, tokens in ends)
    else:
        known = [each for each in times if each is not None]
        assert known == sorted(known)
        assert known[0] > 0
        assert fmean(known) < 1e9
