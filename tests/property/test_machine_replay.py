"""Replay: the same events give the same actions, from a journal's JSON and under any PYTHONHASHSEED."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from plait.core.events import Action, action_adapter, event_adapter
from plait.machine.machine import Machine
from tests.machine.kit import Registry
from tests.property.chaos import POLICIES, Chaos


def scenario(rng: Random, steps: int) -> Chaos:
    """A world after so many things have happened to it, and then played to its end."""
    world = Chaos(rng)
    world.do_up()
    for _ in range(steps):
        world.step()
    world.play_fair()
    return world


def as_json(answers: list[list[Action]]) -> list[list[bytes]]:
    return [[action_adapter.dump_json(action) for action in actions] for actions in answers]


def replayed(world: Chaos) -> Machine:
    """A fresh machine that has been through what is written of a world's events."""
    journal = [event_adapter.dump_json(event) for event in world.events]
    machine = Machine(Registry(POLICIES), cancel_timeout=world.machine.cancel_timeout, lease=world.machine.lease)
    answers = [machine.handle(event_adapter.validate_json(line)) for line in journal]
    assert as_json(answers) == as_json(world.answers)
    follower = Machine(Registry(POLICIES), cancel_timeout=world.machine.cancel_timeout, lease=world.machine.lease)
    told = [follower.follow(*each) for each in zip(world.events, world.orders, strict=True)]
    assert as_json(told) == as_json(world.answers)
    return machine


@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_a_journal_replayed_into_a_fresh_machine_gives_the_same_actions(rng: Random, steps: int) -> None:
    world = scenario(rng, steps)
    machine = replayed(world)
    assert machine.late == world.machine.late
    assert machine.now == world.machine.now


@pytest.mark.parametrize("seed", range(1_000, 1_060))
def test_long_journals_replay(seed: int) -> None:
    replayed(scenario(Random(seed), 200))


def digest(seeds: range, steps: int) -> str:
    """A hash of all that machines said in a number of scenarios."""
    said = hashlib.sha256()
    for seed in seeds:
        for actions in as_json(scenario(Random(seed), steps).answers):
            for action in actions:
                said.update(action)
    return said.hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_order_of_hashes_changes_nothing(hash_seed: str, root: Path) -> None:
    code = "from tests.property.test_machine_replay import digest; print(digest(range(40), 120))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(range(40), 120)
