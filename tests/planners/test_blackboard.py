"""Planner `blackboard`: one log in the order of rounds and workers, claims, overlap, and what the cache spares."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait_research.planners.teams import Blackboard
from plait_research.simulation.latency import Host
from plait_research.simulation.simulator import SimReport, simulate

PARTS = ("one", "two", "three", "four")


def run(
    planner: Blackboard, seed: int = 0, heeds: bool = True, uneven: bool = False
) -> tuple[SimReport, dict[str, str]]:
    """Let scripted workers do four parts, and return what each was asked, by step. Workers that do not heed claims take
    the first part that they have not done themselves."""
    asked: dict[str, str] = {}
    rng = Random(seed)

    def outcome(job: Job, _: Random) -> Result | Failure:
        assert isinstance(job.op, ModelCall)
        prompt = "".join(each.text for each in job.op.prompt if isinstance(each, Text))
        name = job.step.rpartition("/")[2]
        asked[name] = prompt
        if name == "finish":
            return Result(value="answer: all", usage=Usage(completion=3))
        me = name.split("-")[1]
        taken = re.findall(r"\*\*worker-(\d) \[\d+\]:\*\* I take: (\w+)", prompt)
        known = {part for worker, part in taken if heeds or worker == me}
        free = [part for part in PARTS if part not in known]
        if not free:
            return Result(value="answer: all", usage=Usage(completion=3))
        part = free[(int(me) - 1) % len(free)]
        size = rng.randint(20, 120) if uneven else 40
        return Result(value=f"I take: {part}", usage=Usage(completion=size))

    host = Host("h", decode_rate=50.0, cache_tokens=100_000, block=4)
    report = simulate(Request(text="Do all parts.", seed=seed), planner=planner, hosts=[host], outcome=outcome)
    assert report.failure is None, report.failure
    return report, asked


def work_done(asked: dict[str, str]) -> list[str]:
    last = max(asked.values(), key=len)
    return re.findall(r"I take: (\w+)", last)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_log_stands_in_the_order_of_rounds_and_workers_whoever_was_first(depth: int):
    _, even = run(Blackboard(depth=depth))
    for seed in range(20):
        _, uneven = run(Blackboard(depth=depth), seed=seed, uneven=True)
        assert {name: text for name, text in uneven.items() if name in even and name != "finish"} == {
            name: text for name, text in even.items() if name in uneven and name != "finish"
        }


def test_the_log_is_a_common_prefix_and_one_s_own_text_moves_into_it():
    _, asked = run(Blackboard(depth=1), heeds=False)
    log = asked["worker-1-3"].partition("### Log")[2]
    assert log.index("**worker-1 [1]:**") < log.index("**worker-2 [1]:**") < log.index("**worker-1 [2]:**")
    assert "**worker-2 [2]:**" not in log
    common = asked["worker-1-3"].partition("**worker-1 [2]:**")[0]
    assert asked["worker-2-3"].startswith(common)


def test_rounds_overlap_with_a_lag():
    even, behind = run(Blackboard(depth=0), 1, uneven=True)[0], run(Blackboard(depth=1), 1, uneven=True)[0]
    assert even.result is not None and behind.result is not None
    waits = [
        sum(run(Blackboard(depth=depth, rounds=6), seed, False, True)[0].makespan for seed in range(8))
        for depth in (0, 1)
    ]
    assert waits[1] < waits[0]


def test_claims_keep_work_from_being_done_twice():
    _, heeded = run(Blackboard(depth=0, rounds=2))
    _, ignored = run(Blackboard(depth=0, rounds=4), heeds=False)
    assert sorted(work_done(heeded)) == sorted(set(work_done(heeded)))
    assert len(work_done(ignored)) > len(set(work_done(ignored)))
    assert any("(Refused: " in text and "is taken by worker-" in text for text in ignored.values())


def test_the_cache_spares_what_the_log_has_already():
    report, asked = run(Blackboard(depth=1), heeds=False)
    prompts: Any = sum(len(text) // 4 for text in asked.values())
    assert report.prompt_computed < 0.6 * prompts
