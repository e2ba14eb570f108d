"""The record of a run is the same live and from what is stored, and its news lead to what its report says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.events import Action, Event, event_adapter
from plait.core.record import StepRecord
from plait.machine.machine import Machine
from plait.runtime.client.answer import report
from plait.runtime.runlog import RunLog, RunRecord
from tests.machine.kit import Registry
from tests.property.chaos import POLICIES, Chaos


def projection(run: RunRecord) -> dict[str, Any]:
    """All that can be told of a run, times after its beginning."""
    return {
        "steps": [step.written() for step in run.steps],
        "attempts": run.attempts,
        "entered": run.entered,
        "report": report(run).model_dump(mode="json"),
        "finish": run.finish,
        "first": run.first,
    }


class Folded:
    """What logs tell of the events of a machine."""

    def __init__(self) -> None:
        self.log, self.lean = RunLog(keep="texts"), RunLog()
        self.ended: dict[str, dict[str, Any]] = {}
        """By run, as it was told when it had ended."""
        self.news: dict[str, list[StepRecord]] = defaultdict(list)
        """By step."""

    def take(self, event: Event, machine: Machine, actions: Sequence[Action]) -> None:
        delta, lean = self.log.take(event, machine, actions), self.lean.take(event, machine, actions)
        told = [(run.id, step.written()) for run, step in delta.steps()]
        assert told == [(run.id, step.written()) for run, step in lean.steps()]
        for _, step in delta.steps():
            self.news[step.step].append(step)
        assert [each.id for each in delta.ended] == [each.id for each in lean.ended]
        assert set(self.log.live) == set(self.lean.live) == set(machine.attempts)
        assert set(self.lean.runs) == set(machine.runs), "what has ended is not kept"
        assert not any(each.deltas for each in self.lean.live.values()), "a text that nobody reads is not kept"
        for run in delta.finished:
            self.ended[run.id] = projection(run)
            for step in run.steps:
                self.check_news(step)

    def check_news(self, step: StepRecord) -> None:
        """News tell that a step entered, and then each of its moves once."""
        entered, *moved = self.news[step.step]
        assert (entered.state, entered.moves) == ("waiting", ())
        assert [each.moves for each in moved] == [step.moves[: n + 1] for n in range(len(step.moves))]
        assert [each.state for each in moved] == [state for _, state, _ in step.moves]

    def all(self) -> dict[str, dict[str, Any]]:
        return {**self.ended, **{run.id: projection(run) for run in self.log.runs.values() if run.finish is None}}


class Followed(Chaos):
    """A world of which logs take the events while they happen."""

    def __init__(self, rng: Random) -> None:
        self.folded = Folded()
        super().__init__(rng)

    def send(self, event: Event) -> list[Action]:
        actions = super().send(event)
        self.folded.take(event, self.machine, actions)
        return actions


def check_live_is_stored(world: Followed, steps: int) -> None:
    world.do_up()
    for _ in range(steps):
        world.step()
    middle = world.folded.all()
    cut = len(world.events)
    world.play_fair()
    machine = Machine(Registry(POLICIES), cancel_timeout=world.machine.cancel_timeout, lease=world.machine.lease)
    stored = Folded()
    for number, event in enumerate(world.events):
        if number == cut:
            assert stored.all().keys() == middle.keys()
        again = event_adapter.validate_json(event_adapter.dump_json(event))
        stored.take(again, machine, machine.handle(again))
    assert stored.all() == world.folded.all()
    assert stored.log.workers == world.folded.log.workers
    assert stored.log.live == world.folded.log.live


@given(st.randoms(use_true_random=False), st.integers(5, 60))
def test_the_live_and_the_stored_record_are_equal(rng: Random, steps: int) -> None:
    check_live_is_stored(Followed(rng), steps)


@pytest.mark.parametrize("seed", range(20))
def test_those_of_long_runs_too(seed: int) -> None:
    check_live_is_stored(Followed(Random(seed)), 200)
