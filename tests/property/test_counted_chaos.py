"""The chaotic world with workers that report and count, under budgets of every kind."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from plait.core.budget import Budget
from plait.core.events import Action, Count, Counted, Event, WorkerUp
from plait.core.result import Price
from tests.property import chaos
from tests.property.chaos import Chaos

WIDER = {"prompt_tokens": 60, "total_tokens": 150, "depth": 2, "turns": 5}


class Counting(Chaos):
    """Workers that report what they generate, and count prompts late, never, or wrongly."""

    asked: tuple[Count, ...] = ()

    def send(self, event: Event) -> list[Action]:
        if isinstance(event, WorkerUp):
            prices = {"": Price(input=1e4, output=5e4)} if self.rng.random() < 0.5 else {}
            counts = self.rng.random() < 0.5
            event = replace(event, reports=self.rng.choice([None, 16]), counts_tokens=counts, prices=prices)
        self.spent.clear()  # a limit may be passed by reports that are under way: tests in virtual time say by how many
        return super().send(event)

    def _take(self, action: Action) -> None:
        super()._take(action)
        if isinstance(action, Count):
            self.asked += (action,)

    def count(self) -> None:
        """A worker answers, or answers again."""
        asked = self.rng.choice(self.asked)
        if self.rng.random() < 0.8:
            self.asked = tuple(each for each in self.asked if each is not asked)
        self.send(Counted(at=self.now, step=asked.step, tokens=self.rng.choice([None, 0, 1, 3, 40, 10**30])))

    def tick(self, *given: float) -> list[Action]:  # type: ignore[override]
        if self.asked and not self.jobs:
            self.asked, first = self.asked[1:], self.asked[0]
            return self.send(Counted(at=self.now, step=first.step, tokens=2))
        return super().tick(*given)  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = chaos.random_budget

    def wider(rng: Random, chance: float) -> Budget | None:
        budget = drawn(rng, chance)
        if budget is None or rng.random() < 0.4:
            return budget
        more = {name: rng.randint(1, most) for name, most in WIDER.items() if rng.random() < 0.4}
        return Budget(**budget.limits | more, strict=rng.random() < 0.3)  # type: ignore[arg-type]

    monkeypatch.setattr(chaos, "random_budget", wider)


@pytest.mark.parametrize("seed", range(60))
def test_every_run_ends_once_whatever_is_counted(seed: int) -> None:
    world = Counting(Random(seed))
    world.do_up()
    world.do_submit()
    for _ in range(150):
        if world.asked and world.rng.random() < 0.4:
            world.count()
        else:
            world.step()
    world.play_fair()
    again = type(world.machine)(world.machine._plugins, cancel_timeout=3.0, lease=world.machine.lease)  # type: ignore[arg-type]
    assert [again.handle(event) for event in world.events] == world.answers, "the same events, the same actions"
