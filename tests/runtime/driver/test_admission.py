"""The bound on runs that wait: refused in words with an estimate, in virtual time, in the client, and over HTTP."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from experiments.overload.run import BOUND, play
from plait import AsyncOrchestrator
from plait.core.errors import Overloaded
from plait.core.ops import Plugin
from plait.core.request import Request
from plait.runtime.driver.admission import Admission
from plait.workers.scripted import Reply, Scripted
from plait_research.simulation.latency import Host
from plait_research.simulation.workload import simulate_workload
from tests.machine.invariants import check_invariants

HUNDRED = Request(text="q", planner=Plugin(name="single", options={"answer": {"max_tokens": 100}}))
ONE = Host("a", slots=1, decode_rate=100.0, prefill_rate=1e12)
"""A run takes a second, and one is served at a time."""


def test_goodput_stays_beyond_full_load_and_would_collapse_without_a_bound() -> None:
    full, _ = play(1.0, 5, BOUND, runs=200)
    over, report = play(1.5, 5, BOUND, runs=200)
    blind, _ = play(1.5, 5, None, runs=200)
    assert over >= 0.9 * full and report.refused > 0
    assert blind < 0.7 * over


def test_what_is_beyond_the_bound_is_refused_and_the_others_are_served() -> None:
    report = simulate_workload(HUNDRED, [0.0] * 6 + [0.5, 10.0], hosts=[ONE], max_waiting=2, check=check_invariants)
    assert (report.done, report.refused) == (4, 4)  # one runs and two wait; at 0.5 s still; at 10 s none
    assert report.latency.max == pytest.approx(3.0)
    assert simulate_workload(HUNDRED, [0.0] * 6, hosts=[ONE], within=2.5).in_time == 2


def test_the_estimate_is_the_queue_over_the_rate_since_it_began() -> None:
    admission = Admission(4)
    assert admission.seconds(3, 1.0) is None
    for at in (101.0, 102.0, 103.0, 104.0):
        admission.record_end(at)
    admission._since = 100.0
    assert admission.seconds(6, 104.0) == pytest.approx(6.0)
    for at in range(105, 1105):
        admission.record_end(float(at))
    assert admission.seconds(10, 1104.0) == pytest.approx(10.0, rel=0.01)


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(Overloaded("full", 2.5)))
    assert (str(error), error.wait, error.retryable) == ("full", 2.5, True)


async def test_a_client_is_refused_in_words_and_let_in_when_there_is_room() -> None:
    worker = Scripted([Reply(text="answer: 4", delay=0.05)], slots=2)
    async with AsyncOrchestrator(workers=[worker], journal="off", max_waiting=2) as orchestrator:
        first = [await orchestrator.submit("2 + 2?") for _ in range(4)]  # two are served, two wait
        with pytest.raises(Overloaded, match=r"2 runs of 2 allowed .* no run has ended yet"):
            await orchestrator.submit("2 + 2?")
        await asyncio.wait([handle.finished for handle in first], return_when=asyncio.FIRST_COMPLETED)
        more = [await orchestrator.submit("2 + 2?")]
        while len(orchestrator.runs) < 4:
            more.append(await orchestrator.submit("2 + 2?"))
        with pytest.raises(Overloaded, match=r"would wait about [\d.e-]+ s") as refused:
            await orchestrator.submit("2 + 2?")
        assert refused.value.wait is not None and 0 < refused.value.wait < 60
        assert all([(await handle).answer == "4" for handle in (*first, *more)])


async def test_free_slots_take_a_burst_that_the_machine_has_not_heard_of_yet() -> None:
    async with AsyncOrchestrator(
        workers=[Scripted([Reply(text="4")], slots=64)], journal="off", max_waiting=1
    ) as plait:
        answers = await asyncio.gather(*(plait.run(f"{i}") for i in range(40)))
    assert {answer.status for answer in answers} == {"done"}
