"""Many runs through one machine in virtual time: figures that can be worked out by hand, and what trace files say."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from plait.core.errors import ConfigError
from plait.core.flow import Context, Flow
from plait.core.ops import Plugin
from plait.core.request import Request
from plait_research.simulation.latency import Host, WorkerFault, varied
from plait_research.simulation.workload import Spread, at_rate, simulate_workload
from tests.machine.invariants import check_invariants

ONE = Host("a", slots=1, decode_rate=100.0, prefill_rate=1e12)
"""100 tokens a second, one request at a time."""
HUNDRED = Request(text="q", planner=Plugin(name="single", options={"answer": {"max_tokens": 100}}))


def test_runs_wait_for_one_another() -> None:
    report = simulate_workload(HUNDRED, [0.0, 0.0, 0.5, 10.0], hosts=[ONE], check=check_invariants)
    assert (report.runs, report.done, report.steps, report.attempts) == (4, 4, 4, 4)
    assert report.makespan == pytest.approx(11.0)
    # ends: 1, 2, 3 and 11
    assert report.latency.max == pytest.approx(2.5) and report.latency.mean == pytest.approx((1 + 2 + 2.5 + 1) / 4)
    assert report.wait.max == pytest.approx(1.5)
    assert report.utilisation == pytest.approx(4 / 11)
    assert report.throughput == pytest.approx(4 / 11) and report.tokens_per_second == pytest.approx(400 / 11)


def test_the_same_seed_gives_the_same_report() -> None:
    request = Request(text="q", planner=Plugin(name="sample", options={"n": 3}))
    hosts = [Host(f"h{i}", slots=4) for i in range(3)]

    def report(seed: int) -> Any:
        return simulate_workload(request, at_rate(60, 20.0, seed=seed), hosts=hosts, outcome=varied(), seed=seed)

    assert report(1) == report(1) != report(2)


def test_several_requests_are_taken_in_turn_and_runs_are_apart() -> None:
    short = Request(text="q", planner=Plugin(name="single", options={"answer": {"max_tokens": 10}}))
    report = simulate_workload([HUNDRED, short], [0.0] * 10, hosts=[ONE])
    assert report.usage.completion == 5 * 110


def test_flows_and_dying_engines_are_part_of_a_workload() -> None:
    class Two(Flow):
        async def run(self, ctx: Context, question: str) -> Any:
            await ctx.first([ctx.think("a", max_tokens=10), ctx.think("b", max_tokens=400)])
            return await ctx.think("c", max_tokens=10)

    hosts = [Host(f"h{i}", slots=4, decode_rate=100.0) for i in range(2)]
    faults = [WorkerFault(1.0, "h0", down_for=0.5)]
    report = simulate_workload(
        HUNDRED, at_rate(40, 10.0), planner=Two(), hosts=hosts, faults=faults, check=check_invariants
    )
    assert report.done == 40 and report.attempts > report.steps - 2 * 40
    assert 0 < report.usage.cancelled < 40 * 400


def test_a_workload_without_end_states_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        at_rate(0, 1.0)
    with pytest.raises(ConfigError, match="above 0"):
        at_rate(2, -1.0)
    with pytest.raises(ConfigError, match="at least one arrival"):
        simulate_workload(HUNDRED, [])


def test_failed_runs_are_counted_and_the_first_failure_is_kept() -> None:
    calls = Host("a", serves=("call",))
    report = simulate_workload(HUNDRED, [0.0, 1.0], hosts=[calls])
    assert (report.done, report.failed) == (0, 2)
    assert report.failure is not None and report.failure.kind == "NoWorker"


def test_arrivals_come_at_their_rate() -> None:
    times = at_rate(20_000, 8.0, seed=3)
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    mean = fmean(gaps)
    assert times[0] == 0.0 and mean == pytest.approx(1 / 8, rel=0.05)
    assert fmean((gap - mean) ** 2 for gap in gaps) == pytest.approx(mean**2, rel=0.15)
    assert at_rate(3, None) == [0.0, 0.0, 0.0]


def test_percentiles_are_those_of_numpy() -> None:
    spread = Spread.of([float(i) for i in range(101)])
    assert (spread.p50, spread.p90, spread.p99, spread.max) == (50.0, 90.0, 99.0, 100.0)
    assert Spread.of([3.0]).p99 == 3.0 and Spread.of([]).max == 0.0
