"""Which steps that ended tell how long another will be: the machine's books, and what policies see of them."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.lengths import ENOUGH, expected_tokens
from plait.core.view import AttemptEnd
from plait.machine.run_statistics import REMEMBERED
from plait.machine.views import NodeView
from tests.machine.kit import World, call, join, think


def submit(world: World, run: str, *names: str, each: int = 12, planner: str = "sample", tokens: int = 100) -> None:
    """Submit a run with so many think steps of each name."""
    steps = [f"{name}{i}" for name in names for i in range(each)]
    thinks = (think(step, tokens=tokens) for step in steps)
    world.submit(*thinks, join("all", *steps), run=run, planner=planner)


def end(world: World, run: str, name: str, *tokens: int) -> None:
    """Let the first steps of a name end with so many tokens each."""
    for i, count in enumerate(tokens):
        world.succeed(f"{run}:{name}{i}", tokens=count)


def step(world: World, name: str) -> NodeView:
    found = world.machine.view().step(name)
    assert found is not None
    return found


def expected(world: World, name: str, share: float = 0.7) -> float:
    return world.machine.view().expected_tokens(step(world, name), share)


def test_siblings_come_before_earlier_runs_and_these_before_other_steps_with_that_limit() -> None:
    world = World(slots=100)
    submit(world, "one", "draft-", "check-")
    assert expected(world, "one:draft-11") == expected_tokens(100)
    end(world, "one", "check-", *[70] * ENOUGH)
    assert expected(world, "one:draft-11") == 70, "the same model and limit"
    end(world, "one", "draft-", *[40] * ENOUGH)
    assert (expected(world, "one:draft-11"), expected(world, "one:check-11")) == (40, 70)
    submit(world, "two", "draft-")
    assert expected(world, "two:draft-11") == 40, "an earlier run"
    end(world, "two", "draft-", *[10] * ENOUGH)
    assert (expected(world, "two:draft-11"), expected(world, "one:draft-11")) == (10, 40), "each by its own siblings"


@pytest.mark.parametrize("other", [{"planner": "fixed"}, {"tokens": 50}])
def test_another_planner_or_limit_is_another_template(other: dict[str, object]) -> None:
    world = World(slots=100)
    submit(world, "one", "draft-", each=REMEMBERED // 4, tokens=100)
    end(world, "one", "draft-", *[10] * 30)
    submit(world, "two", "draft-", **other)  # type: ignore[arg-type]
    end(world, "two", "draft-", *[20] * ENOUGH)
    submit(world, "three", "draft-")
    assert expected(world, "three:draft-11", 0.9) == 10


def test_steps_like_one_are_those_of_its_template_once_there_are_enough() -> None:
    world = World(slots=100)
    submit(world, "one", "draft-", "check-")
    end(world, "one", "check-", 70)
    end(world, "one", "draft-", *[40] * (ENOUGH - 1))
    view = world.machine.view()
    assert {each.tokens for each in view.peers(step(world, "one:draft-11"))} == {40, 70}
    world.now = 2.5
    world.succeed("one:draft-10", tokens=41)
    assert view.peers(step(world, "one:draft-11"))[-1] == AttemptEnd(2.5, 41, "w")
    assert {each.tokens for each in view.peers(step(world, "one:draft-11"))} == {40, 41}


def test_a_step_under_way_is_expected_to_be_longer_than_it_is() -> None:
    world = World(slots=100)
    submit(world, "one", "draft-")
    end(world, "one", "draft-", *[10] * 4, *[60] * 4)
    assert expected(world, "one:draft-11", 0.5) == 10
    world.progress("one:draft-11", tokens=20)
    assert expected(world, "one:draft-11", 0.5) == 40


def test_calls_are_like_those_of_the_same_tool_and_have_no_length() -> None:
    world = World()
    world.submit(call("t1"), call("t2"), think("a"), join("all", "t1", "t2", "a"))
    world.now = 3.0
    world.succeed("t1")
    view = world.machine.view()
    assert [each.seconds for each in view.peers(step(world, "r:t2"))] == [3.0]
    assert view.peers(step(world, "r:a")) == ()


def test_an_answer_that_a_budget_cut_short_says_nothing_of_lengths() -> None:
    world = World(slots=1)
    world.submit(
        think("a1", budget=Budget(tokens=10)), think("a2"), join("all", "a1", "a2", best_effort=True)
    )  # fmt: skip
    world.succeed("a1", tokens=10, finish="length")
    assert world.machine.view().peers(step(world, "r:a2")) == ()


def test_books_are_bounded_and_those_of_a_run_go_with_it() -> None:
    world = World(slots=2_000, checked=False)
    submit(world, "one", "draft-", each=REMEMBERED + 50)
    end(world, "one", "draft-", *[10] * (REMEMBERED + 40))
    assert len(world.machine.view().peers(step(world, "one:draft-299"))) == REMEMBERED
    records = world.machine._records
    assert sum(map(len, records.ended.ends.values())) == 2 * REMEMBERED
