"""The rank of policy `deadline`: the way to the output in expected tokens, and which runs are given up."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.policies.schedule.order import Deadline


@dataclass
class Step:
    id: str
    consumers: tuple[Step, ...] = ()
    kind: str = "think"
    owner: Step | None = None
    run: str = "r"
    max_tokens: int = 1000
    upward_rank: float = 1000.0
    after: None = None


@dataclass
class Engine:
    """Alone a token takes `alone` seconds, and as much more with every further attempt."""

    alone: float = 0.01
    running: int = 0
    serves: bool = True

    def could_take(self, step: Step) -> bool:
        return self.serves

    def pace(self, attempts: int) -> float:
        return self.alone * attempts


@dataclass
class View:
    lengths: dict[str, float]
    """By the beginning of a step's name."""
    due: float | None = 100.0
    workers: tuple[Engine, ...] = (Engine(),)
    now: float = 0.0
    asked: list[str] = field(default_factory=list)

    def deadline(self, run: str) -> float | None:
        return self.due

    def submitted(self, run: str) -> float:
        return 5.0

    def expected_tokens(self, step: Step, share: float) -> float:
        self.asked.append(step.id)
        return next(length for name, length in self.lengths.items() if step.id.startswith(name))


def rank(step: Step, view: View, **options: Any) -> float:
    (found,) = Deadline(**options).rank(step, view)  # type: ignore[arg-type]
    return found


LENGTHS = {"long": 300.0, "short": 50.0, "last": 100.0}


def test_the_way_is_the_longest_one_in_tokens_that_are_expected() -> None:
    last = Step("last1")
    join = Step("join", (last,), kind="join")
    short = Step("short1", (Step("short2", (join,)),))
    start = Step("last0", (short, Step("long1", (join,))))
    assert rank(start, View(LENGTHS)) == pytest.approx(100 - 0.01 * (100 + 300 + 100))
    assert rank(short, View(LENGTHS)) == pytest.approx(100 - 0.01 * (50 + 50 + 100))


def test_the_way_goes_on_behind_the_step_that_expanded() -> None:
    outer = Step("long1", (Step("last1"),))
    assert rank(Step("short1", owner=outer), View(LENGTHS)) == pytest.approx(100 - 0.01 * (50 + 100))


def test_steps_of_one_template_are_estimated_once() -> None:
    step = Step("last1")
    for i in range(150):
        step = Step(f"short{i}", (step,))
    view = View(LENGTHS)
    assert rank(step, view) == pytest.approx(100 - 0.01 * (150 * 50 + 100))
    assert len(view.asked) == 2


def test_of_a_very_long_plan_only_the_next_steps_are_looked_at() -> None:
    step = Step("last1", upward_rank=1000.0)
    for i in range(5_000):
        step = Step(f"short{i}", (step,), upward_rank=step.upward_rank + 1000.0)
    assert rank(step, View(LENGTHS, due=1e6)) < 1e6 - 0.01 * 5_000 * 50


def test_a_run_is_given_up_only_where_the_quickest_engine_alone_would_be_too_slow() -> None:
    engines = (Engine(0.01, running=8), Engine(0.04, running=1), Engine(0.0001, serves=False))
    step = Step("last1")
    tight = View(LENGTHS, due=1.1, workers=engines)
    assert rank(step, tight) == pytest.approx(1.1 - 100 * (0.08 + 0.04) / 2), "100 tokens take a second alone"
    assert rank(step, View(LENGTHS, due=0.9, workers=engines)) > 3000


def test_without_a_budget_the_policys_own_seconds_count_from_the_submission() -> None:
    assert rank(Step("last1"), View(LENGTHS, due=None), seconds=30) == pytest.approx(5 + 30 - 1)


def test_before_any_attempt_has_ended_the_deadline_alone_orders() -> None:
    nothing = SimpleNamespace(could_take=lambda step: True, pace=lambda attempts: None, running=0)
    assert rank(Step("last1"), View(LENGTHS, due=3.0, workers=(nothing,))) == 3.0  # type: ignore[arg-type]


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 100), st.floats(0.001, 5))
def test_what_waits_long_enough_goes_first(early: float, later: float, slack: float, ageing: float) -> None:
    """Of two that can make it: one that was ready r seconds earlier goes first if its slack is not a · r larger."""
    first, second = sorted((early, later))
    patient = rank(Step("last1"), View(LENGTHS, due=1000 + slack, now=first), ageing=ageing)
    urgent = rank(Step("last1"), View(LENGTHS, due=1000, now=second), ageing=ageing)
    if slack < ageing * (second - first) - 1e-6:
        assert patient < urgent
    if slack > ageing * (second - first) + 1e-6:
        assert urgent < patient
