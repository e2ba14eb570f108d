"""Whatever happens, in whatever order, the machine's invariants hold, and every run ends once with nothing left."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from tests.property.chaos import Chaos


@settings(max_examples=100)
@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_every_run_ends_once_and_leaves_nothing(rng: Random, steps: int) -> None:
    world = Chaos(rng)
    world.do_up()
    world.do_submit()
    for _ in range(steps):
        world.step()
    world.play_fair()


@pytest.mark.parametrize("seed", range(200))
def test_long_scenarios(seed: int) -> None:
    world = Chaos(Random(seed))
    world.do_up()
    for _ in range(150):
        world.step()
    world.play_fair()
