"""Votes under random progress, answers, failures, prunings and cancels: no slot leaks, no vote is lost, and the same
events give the same actions again."""

from __future__ import annotations

import random

import pytest

from plait.core.events import Cancelled, Progressed, Pruned
from plait.machine.machine import Machine
from plait.runtime.plugins.loader import Plugins
from tests.policies.bench import Bench
from tests.policies.branches import confident

POLICIES = [
    ("consensus",),
    ("adaptive-consistency", "waves:n=3", "redundant:steps=2,threshold=0.6"),
    ("esc:window=2", "deepconf:warmup=2,eta=50"),
    ("semantic-entropy", "redundant:steps=3"),
    ("saturation:min_votes=2,epsilon=0.05", "deepconf:warmup=3,hold=false"),
    ("deepconf-consensus:min_votes=3,tau=0.7", "redundant:steps=1,threshold=1"),
    ("confident:criterion=mean,threshold=6", "first-finish:votes=3", "futility:chance=0.2", "waves:n=2"),
]
MERGES = ["majority", "weighted", "inverse-entropy", "shortest-majority", "best-of"]
LINES = ["one\n", "two\n", "three\n", "four\n"]


class Recording(Bench):
    """A bench that keeps what went in and what came out."""

    def __init__(self, *args, **more) -> None:
        self.log: list = []
        super().__init__(*args, **more)

    def take(self, event):
        entry = [event, None]
        self.log.append(entry)
        entry[1] = super().take(event)
        return entry[1]


def one_run(rng: random.Random) -> tuple[Recording, dict[int, str]]:
    n = rng.randint(1, 8)
    bench = Recording(
        n, *rng.choice(POLICIES), slots=rng.randint(1, 8), stream=True, merge=rng.choice(MERGES), logprobs=20, window=8,
        early=rng.random() < 0.2,
    )  # fmt: skip
    said: dict[int, str] = {}
    for _ in range(400):
        if bench.finish is not None:
            break
        move = rng.random()
        there = sorted(bench.live)
        if not there:
            break
        at = rng.choice(there)
        if move < 0.55:
            group = rng.uniform(1, 9)
            bench.take(
                Progressed(at=0, attempt=bench.live[at], text=rng.choice(LINES), tokens=rng.randint(1, 4), group=group,
                           lowest=group)
            )  # fmt: skip
        elif move < 0.9:
            said[at] = rng.choice("AAB?")
            bench.done(at, f"answer: {said[at]}" if said[at] != "?" else " ", confident(rng.uniform(1, 9)))
        elif move < 0.95:
            bench.fail(at)
        elif move < 0.99:
            bench.take(Pruned(at=0, step=f"r:sample-{at}"))
        else:
            bench.take(Cancelled(at=0, run="r"))
    return bench, said


def replayed(log: list) -> None:
    machine = Machine(Plugins())
    for event, actions in log:
        assert machine.handle(event) == actions


def check_runs(rng: random.Random, count: int) -> None:
    outcomes: set[str] = set()
    for _ in range(count):
        bench, said = one_run(rng)
        assert bench.finish is not None, "every run ends"
        outcomes.add(bench.finish.status)
        assert not bench.machine.attempts and not bench.machine.runs
        assert all(host.running == 0 for host in bench.machine.workers.values()), "a slot has leaked"
        result = bench.finish.result
        heard = [answer for answer in said.values() if answer != "?"]
        if result is not None and result.value is not None:
            assert result.value in heard
            if "cut off" not in result.why and "below" not in result.why:
                counted = int(result.why.split(" votes")[0].split(" of ")[-1]) if " votes" in result.why else 0
                assert counted >= len(heard) or "verified; " in result.why, "a vote was lost"
        replayed(bench.log)
    assert {"done", "failed"} <= outcomes


@pytest.mark.parametrize("part", range(5))
def test_votes_end_whole_and_replay_the_same(part: int) -> None:
    check_runs(random.Random(part), 200)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_votes_end_whole_and_replay_the_same() -> None:
    check_runs(random.Random(99), 10_000)
