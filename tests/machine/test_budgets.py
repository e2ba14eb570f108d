"""Budgets: hard, nested (run > group > step), kept by reservation; what is refused, what waits, what is charged."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.errors import Interrupted
from plait.core.ops import ModelCall
from plait.core.plan import Step
from plait.core.request import Retries
from plait.core.result import Sources, Usage, as_failure
from tests.machine.kit import World, call, fail_with, join, think


def granted(world: World, step: str) -> int:
    op = world.job(step).op
    assert isinstance(op, ModelCall)
    return op.sampling.max_tokens


def message(world: World) -> str:
    failure = world.finish.failure
    assert failure is not None
    return f"{failure.kind}: {failure.message}"


def thinks(*names: str, tokens: int = 50) -> list[Step]:
    return [think(name, tokens=tokens) for name in names]


def test_tokens_are_reserved_so_that_no_more_can_be_generated_than_the_budget_has() -> None:
    world = World()
    world.submit(*thinks("a", "b", "c"), join("j", "a", "b", "c", best_effort=True), budget=Budget(tokens=120))
    assert world.running() == ["a", "b"]
    assert world.state("c") == "ready"
    world.succeed("a", tokens=50)
    assert world.state("c") == "ready"  # 20 are left, and `b` may still give some of its 50 back
    world.succeed("b", tokens=40)
    assert granted(world, "c") == 30
    world.succeed("c", tokens=30, finish="length")
    assert world.finish.status == "partial"
    assert world.finish.usage.completion == 120


def test_what_an_attempt_gives_back_is_used_by_those_that_wait() -> None:
    world = World()
    world.submit(*thinks("a", "b", "c"), join("j", "a", "b", "c"), budget=Budget(tokens=100))
    assert world.running() == ["a", "b"]
    world.succeed("a", tokens=0)
    assert granted(world, "c") == 50


def test_a_job_shortened_by_a_budget_that_stops_by_itself_is_not_partial() -> None:
    world = World()
    world.submit(think("a", tokens=50), budget=Budget(tokens=20))
    assert granted(world, "a") == 20
    world.succeed("a", tokens=5, finish="stop")
    assert world.finish.status == "done"


def test_a_length_that_the_plan_itself_asked_for_is_not_partial() -> None:
    world = World()
    world.submit(think("a", tokens=50), budget=Budget(tokens=60))
    world.succeed("a", tokens=50, finish="length")
    assert world.finish.status == "done"


def test_no_tokens_left_is_a_refusal_with_the_remedy() -> None:
    world = World()
    world.submit(think("a"), think("b", "a"), budget=Budget(tokens=10))
    world.succeed("a", tokens=10, finish="length")
    assert message(world) == "BudgetExceeded: run r: all 10 tokens are used up; raise `tokens`"
    assert world.finish.status == "partial"
    assert world.finish.partial == {"r:a": "v"}


def test_the_limit_of_a_run_that_nobody_limited_is_named_as_the_default() -> None:
    world = World()
    world.submit(think("a", tokens=50), default_token_limit=20)
    world.succeed("a", tokens=20, finish="length")
    assert "the default of 20 tokens holds (setting `default_token_limit`): raise `tokens`" in message(world)


def test_a_stopping_attempt_keeps_its_tokens_until_the_worker_has_said_how_many_they_were() -> None:
    world = World()
    world.submit(
        *thinks("a", "b"),
        join("j", "a", "b", quorum=1),
        think("c", "j", tokens=100),
        budget=Budget(tokens=100),
    )
    world.succeed("a", tokens=10)
    assert world.state("c") == "ready"
    world.stopped("b", tokens=30)
    assert granted(world, "c") == 60
    world.succeed("c", tokens=60)
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (100, 30)


def lingering(*, grace: float = 1.0) -> World:
    """A world of two steps that may generate 50 tokens each of 100, for a join that one of them closes."""
    world = World(grace=grace)
    world.up("v", 4)
    world.submit(*thinks("a", "b"), join("j", "a", "b", quorum=1), think("c", "j"), budget=Budget(tokens=100))
    return world


def test_what_an_attempt_generated_that_never_answered_is_taken_to_be_all_it_might_have() -> None:
    world = lingering()
    world.progress("b", "x", 7)
    world.succeed("a", tokens=0)
    world.tick()
    assert granted(world, "c") == 50
    world.succeed("c", tokens=50)
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (57, 7)


@pytest.mark.parametrize(("told", "charge"), [([], 50), ([7], 14), ([4, 7, 3], 21), ([20, 20], 50), ([1, 50], 51)])
@pytest.mark.parametrize("how", ["down", "lost", "stopping"])
def test_an_attempt_whose_worker_died_is_charged_what_was_told_and_one_report_more(
    how: str, told: list[int], charge: int
) -> None:
    world = lingering()
    for tokens in told:
        world.progress("b", "x", tokens)
    account = world.node("b").account
    assert account is not None
    if how == "lost":
        world.fail("b", fail_with(lost=True))
    elif how == "stopping":
        world.succeed("a", tokens=0)
    if how != "lost":
        world.down(world.jobs[world.attempt("b")].worker)
    assert account.tokens == charge


def test_an_interrupted_attempt_is_charged_what_was_told_and_one_report_more() -> None:
    world = World()
    world.submit(think("a", tokens=500), budget=Budget(tokens=560))
    world.progress("a", ids=range(16))
    world.progress("a", ids=range(16, 40))
    world.fail("a", as_failure(Interrupted("our own process ended")))
    assert world.job("a").generated == tuple(range(40))
    assert granted(world, "a") == 500, "40 of them are there, and 560 - 64 are enough for the rest"


def test_tokens_heard_of_count_where_the_answer_has_none() -> None:
    world = World()
    world.submit(think("a"), retries=Retries(think=0))
    world.progress("a", "xxx", 3)
    world.fail("a", usage=Usage(prompt=5, cost=2.0))
    sources = Sources(completion="estimate")
    assert world.finish.usage == Usage(prompt=5, completion=3, cancelled=3, cost=2.0, sources=sources)


def test_attempts_count_retries() -> None:
    world = World()
    world.submit(call("a"), budget=Budget(attempts=2), retries=Retries(call=9, backoff=0.5))
    for _ in range(2):
        world.fail("a", fail_with(retryable=True))
        world.tick()
    said = message(world)
    assert said.startswith(
        "BudgetExceeded: run r: all 2 attempts are used up; raise `attempts`; the step's last failure"
    )


def test_width_holds_back_and_lets_go_in_order() -> None:
    world = World(slots=9)
    names = [f"s{i}" for i in range(6)]
    steps = [call(name, priority=-int(name == "s4")) for name in names]
    world.submit(*steps, join("j", *names), budget=Budget(width=2))
    assert world.running() == ["s4", "s0"] or world.running() == ["s0", "s1"]
    order = []
    while "r" not in world.finishes:
        assert len(world.running()) <= 2
        order.append(world.running()[0])
        world.succeed(order[-1])
    assert sorted(order) == names
    assert [name for name in order if name != "s4"] == ["s0", "s1", "s2", "s3", "s5"]


def test_a_stopping_attempt_still_counts_for_the_width() -> None:
    world = World(slots=9)
    world.submit(call("a"), call("b"), join("j", "a", "b", quorum=1), call("c", "j"), budget=Budget(width=2))
    world.succeed("a")
    assert world.running() == ["c"]
    world.submit(call("a"), call("b"), join("j", "a", "b", quorum=1), call("c", "j"), run="s", budget=Budget(width=2))
    assert len(world.machine.attempts) == 4


def test_cost_is_known_when_an_attempt_ends_and_stops_the_next() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"), budget=Budget(cost=1.5))
    world.succeed("a", usage=Usage(cost=2.0))
    assert message(world) == "BudgetExceeded: run r: 2 of a cost of 1.5 is spent; raise `cost`"
    assert world.finish.usage.cost == 2.0


def test_the_cost_of_a_failed_attempt_counts() -> None:
    world = World()
    world.submit(call("a"), budget=Budget(cost=1), retries=Retries(backoff=0.1))
    world.fail("a", fail_with(retryable=True), usage=Usage(cost=1.0))
    world.tick()
    assert message(world).startswith("BudgetExceeded: run r: 1 of a cost of 1 is spent")


def test_a_plan_with_too_many_steps_is_refused_whole() -> None:
    world = World()
    world.submit(call("a"), call("b"), join("j", "a", "b"), budget=Budget(steps=2))
    assert message(world) == "BudgetExceeded: run r: 0 + 3 steps exceed a limit of 2; raise `steps`"
    assert world.finish.status == "failed"
    assert world.machine.runs == {}


def test_a_patch_with_too_many_steps_fails_its_step_and_charges_nothing() -> None:
    world = World()
    world.submit(think("e", expands=True), think("f", expands=True), join("j", "e", "f"), budget=Budget(steps=5))
    world.succeed("e", "x")
    world.succeed("f", "x")
    world.expand("e", call("a"), call("b"), join("k", "a", "b"))
    assert world.state("e") == "failed"
    account = world.node("e").account
    assert account is not None
    assert account.steps == 3


def test_a_steps_own_budget_holds_for_what_it_expands_into() -> None:
    world = World()
    world.submit(think("e", expands=True, tokens=50, budget=Budget(tokens=60, steps=2)), call("x"), join("j", "e", "x"))
    world.succeed("e", "x", tokens=40)
    world.expand("e", think("a", tokens=50), output=None, closed=False)
    assert granted(world, "e/a") == 20
    world.expand("e", call("b"), call("c"), output=None, closed=False)
    assert world.state("e") == "failed"
    assert world.node("e").outcome.failure is not None
    assert "r:e: 1 + 2 steps exceed a limit of 2" in str(world.node("e").outcome.failure)


def test_steps_count_against_every_budget_around_them() -> None:
    world = World()
    world.submit(
        call("e", expands=True, budget=Budget(steps=9)), call("x"), join("j", "e", "x"), budget=Budget(steps=4)
    )
    world.succeed("e")
    world.expand("e", call("a"), output=None, closed=False)
    assert world.state("e") == "expanding"
    world.expand("e", call("b"), closed=True)
    assert world.state("e") == "failed"
    assert "run r: 4 + 1 steps exceed a limit of 4" in str(world.node("e").outcome.failure)


def test_a_group_shares_what_its_plan_gives_it() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", "e", tokens=80), budget=Budget(tokens=200))
    world.succeed("e", "x", tokens=20)
    world.expand("e", *thinks("a", "b"), join("j", "a", "b"), budget=Budget(tokens=70, width=1))
    assert world.running() == ["e/a"]
    world.succeed("e/a", tokens=50)
    assert granted(world, "e/b") == 20
    world.succeed("e/b", tokens=20)
    assert granted(world, "z") == 80


def test_the_strictest_of_nested_budgets_decides() -> None:
    world = World()
    inner = think("e", tokens=90, expands=True, budget=Budget(tokens=80))
    world.submit(inner, group=Budget(tokens=70), budget=Budget(tokens=60))
    assert granted(world, "e") == 60


def test_a_step_held_by_an_inner_budget_does_not_hold_others_of_the_outer() -> None:
    world = World(slots=9)
    narrow = Budget(width=1)
    world.submit(think("e", expands=True), think("f", expands=True), join("j", "e", "f"), budget=Budget(width=3))
    world.succeed("e", "x")
    world.succeed("f", "x")
    world.expand("e", call("a"), call("b"), join("k", "a", "b"), budget=narrow)
    world.expand("f", call("a"), call("b"), join("k", "a", "b"), budget=narrow)
    assert world.running() == ["e/a", "f/a"]
    world.succeed("e/a")
    assert world.running() == ["f/a", "e/b"]
    world.succeed("f/a")
    assert world.running() == ["e/b", "f/b"]


def test_a_held_step_that_is_cancelled_does_not_keep_the_others_waiting() -> None:
    world = World(slots=9)
    world.submit(
        call("a"),
        call("b"),
        call("c"),
        join("bs", "b", "a", quorum=1),
        join("j", "bs", "c"),
        budget=Budget(width=1),
    )
    assert world.running() == ["a"]
    world.succeed("a")
    assert world.states("b", "c") == ["cancelled", "running"]


def test_a_held_step_is_refused_when_the_limit_is_used_up_meanwhile() -> None:
    world = World(slots=9)
    names = [f"s{i}" for i in range(5)]
    world.submit(*map(call, names), join("j", *names, best_effort=True), budget=Budget(width=2, attempts=3))
    assert world.running() == ["s0", "s1"]
    world.succeed("s0")
    assert world.states("s2", "s3", "s4") == ["running", "failed", "failed"]
    world.succeed("s1")
    world.succeed("s2")
    assert world.finish.status == "partial"


def test_seconds_fail_the_work_and_joins_make_what_they_can_of_what_is_done() -> None:
    world = World()
    world.submit(call("a"), call("b"), call("c", "b"), join("j", "a", "c", best_effort=True), budget=Budget(seconds=10))
    world.now = 3
    world.succeed("a", 1)
    world.tick()
    assert world.now == 10
    world.stop_all()
    assert world.finish.status == "partial"
    assert world.finish.result is not None
    assert (world.finish.result.value, world.finish.result.partial) == ([1], True)


def test_seconds_of_a_step_start_when_it_enters_the_plan_and_hold_for_it_alone() -> None:
    world = World()
    world.submit(call("a", budget=Budget(seconds=2)), call("b"), join("j", "a", "b", best_effort=True))
    world.tick()
    assert world.now == 2
    assert world.states("a", "b") == ["failed", "running"]
    assert world.node("a").outcome.failure is not None
    assert "r:a: all 2 seconds are used up; raise `seconds`" in str(world.node("a").outcome.failure)


def test_seconds_of_an_expander_end_what_it_expanded_into() -> None:
    world = World()
    world.submit(think("e", expands=True, budget=Budget(seconds=5)), call("b"), join("j", "e", "b", best_effort=True))
    world.now = 1
    world.succeed("e", "x")
    world.expand("e", call("s"), call("t", "s"), join("k", "t", best_effort=True))
    world.tick()
    assert world.now == 5
    assert world.states("e/s", "e/t", "e/k", "e", "b") == ["failed", "failed", "failed", "failed", "running"]


def test_work_that_becomes_ready_after_its_time_is_refused_even_before_the_tick() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"), budget=Budget(seconds=5))
    world.now = 6
    world.succeed("a")
    assert message(world) == "BudgetExceeded: run r: all 5 seconds are used up; raise `seconds`"


def test_seconds_end_a_join_whose_planner_does_not_answer() -> None:
    world = World()
    world.submit(call("a"), join("j", "a", expands=True), budget=Budget(seconds=5))
    world.succeed("a", 1)
    assert world.state("j") == "expanding"
    world.tick()
    assert message(world) == "BudgetExceeded: run r: all 5 seconds are used up; raise `seconds`"
    assert world.finish.status == "partial"


@pytest.mark.parametrize("how", [{"best_effort": True}, {"any_end": True}])
def test_seconds_of_a_join_close_it_over_the_branches_that_are_done(how: dict[str, bool]) -> None:
    world = World()
    world.submit(*map(call, "abc"), join("j", "a", "b", "c", **how, budget=Budget(seconds=5)))
    world.now = 1
    world.succeed("a", 1)
    world.tick()
    assert world.now == 5
    world.stop_all()
    assert world.finish.status == "partial"
    assert world.finish.result is not None
    assert (world.finish.result.value, world.finish.result.partial) == ([1], True)


@pytest.mark.parametrize("how", [{}, {"quorum": 2}, {"best_effort": True, "expands": True}])
def test_seconds_of_a_join_that_cannot_close_fail_it(how: dict[str, bool]) -> None:
    world = World()
    world.submit(*map(call, "abc"), join("j", "a", "b", "c", **how, budget=Budget(seconds=5)))
    world.succeed("a", 1)
    world.tick()
    assert world.now == 5
    world.stop_all()
    assert message(world) == "BudgetExceeded: r:j: all 5 seconds are used up; raise `seconds`"
    assert world.finish.status == "partial"


def test_seconds_of_a_join_leave_its_branches_to_others_that_need_them() -> None:
    world = World()
    timed = join("j", "a", "b", best_effort=True, budget=Budget(seconds=5))
    world.submit(call("a"), call("b"), timed, join("k", "j", "b"))
    world.succeed("a", 1)
    world.tick()
    assert world.states("j", "b", "k") == ["done", "running", "waiting"]
    world.succeed("b", 2)
    assert world.finish.result is not None
    assert world.finish.result.value == [[1], 2]


def test_seconds_of_an_expander_hold_for_a_join_over_branches_outside_of_it() -> None:
    world = World()
    world.submit(call("b"), think("e", expands=True, budget=Budget(seconds=5)), join("j", "e", "b", best_effort=True))
    world.succeed("e", "x")
    world.expand("e", call("s"), join("k", "s", "b"), join("l", "k", best_effort=True))
    world.tick()
    assert world.now == 5
    assert world.states("e/s", "e/k", "e/l", "e", "b") == ["failed", "failed", "failed", "failed", "running"]
    world.succeed("b", 1)
    world.stop_all()
    assert (world.finish.status, world.finish.result.value) == ("partial", [1])


def test_a_join_that_ends_in_time_is_left_alone_by_its_seconds() -> None:
    world = World()
    world.submit(call("a"), join("j", "a", budget=Budget(seconds=5)), call("c", "j"))
    world.succeed("a", 1)
    world.tick()
    assert world.now == 5
    world.succeed("c", 2)
    assert world.finish.status == "done"


def test_a_worker_that_generates_more_than_it_was_granted_uses_up_the_budget() -> None:
    world = World()
    world.submit(think("a", tokens=10), think("b", "a"), budget=Budget(tokens=40))
    world.succeed("a", tokens=60)
    assert message(world) == "BudgetExceeded: run r: all 40 tokens are used up; raise `tokens`"
    assert world.finish.usage.completion == 60


def test_a_deadline_of_a_run_that_is_over_does_nothing() -> None:
    world = World()
    world.submit(call("a"), budget=Budget(seconds=5))
    world.submit(call("b"), run="s", budget=Budget(seconds=9))
    world.succeed("a")
    world.tick(5)
    assert world.state("s:b") == "running"
    assert world.wake == 9


def test_an_empty_budget_is_no_account() -> None:
    world = World()
    world.submit(call("a", budget=Budget()), budget=Budget())
    assert world.node("a").account is None


def test_when_a_step_that_a_budget_holds_back_is_given_up_the_next_is_asked_about_at_once() -> None:
    """`big` is held back before `small`, which would fit; nothing ends in a worker when `big` is given up."""
    from plait.core.events import Pruned

    world = World()
    world.submit(
        think("a", tokens=50), think("b", tokens=41), think("big", tokens=45), think("small", tokens=30),
        join("j", "a", "b", "big", "small", best_effort=True),
        budget=Budget(tokens=120),
    )  # fmt: skip
    world.succeed("b", tokens=35)
    assert world.running() == ["a"]
    assert world.states("big", "small") == ["ready", "ready"]
    world.send(Pruned(at=world.now, step="r:big"))
    assert world.running() == ["a", "small"]


def test_a_limit_of_time_looks_at_the_steps_under_it_alone() -> None:
    world = World(slots=9)
    alone = [think(f"s{i}", budget=Budget(seconds=5.0 + i)) for i in range(3)]
    opens = think("o", expands=True, budget=Budget(seconds=9.0))
    world.submit(*alone, opens, join("j", "s0", "s1", "s2", "o", best_effort=True), budget=Budget(seconds=60.0))
    world.succeed("o")
    world.expand("o", think("in", budget=Budget(seconds=30.0)), think("free"), join("out", "in", "free"))
    names = ("s0", "s1", "s2", "o", "o/in", "j")
    accounts = {name: world.node(name).account for name in names}
    under = {name: [len(payer.timed) for payer in (it, *it.around)] for name, it in accounts.items() if it}
    assert under == {"s0": [1, 8], "s1": [1, 8], "s2": [1, 8], "o": [4, 8], "o/in": [1, 4, 8], "j": [8]}
    world.tick(5.5)
    assert world.states("s0", "s1", "s2", "o") == ["failed", "running", "running", "expanded"]
    world.tick(9.0)
    assert world.states("s1", "s2", "o/in", "o/free", "o") == ["failed"] * 5


def test_a_run_that_limits_neither_tokens_nor_cost_has_a_bound() -> None:
    world = World()
    world.submit(think("a"), think("b", "a"), default_token_limit=10)
    world.succeed("a", tokens=10, finish="length")
    assert message(world) == (
        "BudgetExceeded: run r: all 10 tokens are used up; this run has no limit of its own, so the default of 10 "
        "tokens holds (setting `default_token_limit`): raise `tokens`"
    )


@pytest.mark.parametrize("budget", [Budget(tokens=40), Budget(total_tokens=40), Budget(cost=1.0)])
def test_a_limit_of_tokens_or_cost_takes_the_place_of_the_bound(budget: Budget) -> None:
    world = World()
    world.submit(think("a", tokens=30), budget=budget, default_token_limit=10)
    assert granted(world, "a") == 30


def test_a_limit_that_is_changed_leaves_the_bound() -> None:
    world = World()
    world.submit(think("a", tokens=30), think("b", "a", tokens=30), default_token_limit=40)
    world.limit(seconds=100.0)
    world.succeed("a", tokens=30, finish="length")
    assert granted(world, "b") == 10


@pytest.mark.parametrize(("limit", "reports"), [(1600, 0), (1599, 8)])
def test_an_attempt_far_from_its_limits_is_charged_whole_and_need_not_report(limit: int, reports: int) -> None:
    world = World(slots=0)
    world.up(slots=8, reports=16)
    world.submit(*thinks(*"abcdefgh", tokens=100), join("j", *"abcdefgh"), budget=Budget(tokens=limit))
    assert [world.job(name).report for name in "abcdefgh"].count(True) == reports


def test_together_they_are_charged_whole_up_to_the_half_of_a_limit() -> None:
    world = World(slots=0)
    world.up(slots=12, reports=16)
    world.submit(*thinks(*"abcdefghik", tokens=100), join("j", *"abcdefghik"), budget=Budget(tokens=1700))
    assert [world.job(name).report for name in "abcdefghik"] == [False] * 8 + [True] * 2
