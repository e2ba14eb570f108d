"""Whatever happens, in whatever order, the machine's invariants hold, and every run ends once with nothing left."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.property.chaos import Chaos

RANDOM = st.randoms(use_true_random=False)


class ChaosMachine(RuleBasedStateMachine):
    """Every move of the chaotic world as a rule, so that a failing order of events is shrunk to a short one."""

    world: Chaos

    @initialize(rng=RANDOM)
    def begin(self, rng: Random) -> None:
        self.world = Chaos(rng)
        self.world.do_up()
        self.world.do_submit()

    @rule(rng=RANDOM)
    def submit(self, rng: Random) -> None:
        self.move(rng, "do_submit")

    @precondition(lambda self: self.world.jobs)
    @rule(rng=RANDOM)
    def progress(self, rng: Random) -> None:
        self.move(rng, "do_progress")

    @precondition(lambda self: self.world.jobs)
    @rule(rng=RANDOM)
    def answer(self, rng: Random) -> None:
        self.move(rng, "do_answer")

    @precondition(lambda self: self.world.jobs)
    @rule(rng=RANDOM)
    def answer_another(self, rng: Random) -> None:
        self.move(rng, "do_answer")

    @precondition(lambda self: self.world.jobs)
    @rule(rng=RANDOM)
    def forget(self, rng: Random) -> None:
        self.move(rng, "do_forget")

    @rule(rng=RANDOM)
    def read(self, rng: Random) -> None:
        self.move(rng, "do_read")

    @rule(rng=RANDOM)
    def repeat(self, rng: Random) -> None:
        self.move(rng, "do_repeat")

    @rule(rng=RANDOM)
    def nonsense(self, rng: Random) -> None:
        self.move(rng, "do_nonsense")

    @rule(rng=RANDOM)
    def tick(self, rng: Random) -> None:
        self.move(rng, "do_tick")

    @rule(rng=RANDOM)
    def wait(self, rng: Random) -> None:
        self.move(rng, "do_wait")

    @rule(rng=RANDOM)
    def up(self, rng: Random) -> None:
        self.move(rng, "do_up")

    @rule(rng=RANDOM)
    def down(self, rng: Random) -> None:
        self.move(rng, "do_down")

    @rule(rng=RANDOM)
    def cancel(self, rng: Random) -> None:
        self.move(rng, "do_cancel")

    @rule(rng=RANDOM)
    def prune(self, rng: Random) -> None:
        self.move(rng, "do_prune")

    @rule(rng=RANDOM)
    def pause(self, rng: Random) -> None:
        self.move(rng, "do_pause")

    @rule(rng=RANDOM)
    def limit(self, rng: Random) -> None:
        self.move(rng, "do_limit")

    def move(self, rng: Random, name: str) -> None:
        self.world.rng = rng
        getattr(self.world, name)()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.play_fair()


TestChaos = ChaosMachine.TestCase


@given(RANDOM, st.integers(5, 80))
def test_every_run_ends_once_and_leaves_nothing(rng: Random, steps: int) -> None:
    play(rng, steps)


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(each, marks=pytest.mark.slow) for each in range(4, 20))])
def test_long_scenarios(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        play(Random(seed), 150)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_long_scenarios(block: int) -> None:
    for seed in range(10_000 + 250 * block, 10_000 + 250 * (block + 1)):
        play(Random(seed), 250)


def play(rng: Random, steps: int) -> None:
    world = Chaos(rng)
    world.do_up()
    world.do_submit()
    for _ in range(steps):
        world.step()
    world.play_fair()
