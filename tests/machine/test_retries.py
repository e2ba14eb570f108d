"""What is tried again, how often, when, and what is never tried again; lost workers; the life of an attempt."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.events import Cancel, Dispatch, Failed, Finish, Stopped, Succeeded, WakeAt
from plait.core.request import Retries
from plait.core.result import Result, Usage
from tests.machine.kit import World, call, fail_with, join, think

RETRYABLE = fail_with("busy", "ToolError", retryable=True)
LOST = fail_with("gone", "WorkerLost", lost=True)


@pytest.mark.parametrize(("step", "tries"), [(think("a"), 3), (call("a"), 2)])
def test_each_kind_has_its_own_number_of_retries(step: object, tries: int) -> None:
    world = World()
    world.submit(step, retries=Retries(think=2, call=1, backoff=0.25))  # type: ignore[arg-type]
    for number in range(1, tries):
        world.fail("a", RETRYABLE)
        assert world.state("a") == "waiting"
        assert world.said(WakeAt) == [WakeAt(at=world.now + 0.25 * 2 ** (number - 1))]
        assert world.node("a").story[-1][4] == f"try {number}: ToolError: busy"
        world.tick()
        assert world.state("a") == "running"
    world.fail("a", RETRYABLE)
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "ToolError"
    assert world.finish.failure.message == f"busy (after {tries} tries)"


def test_a_limit_that_ends_the_tries_reports_the_last_failure() -> None:
    """The time limit alone was reported: who raised it waited longer for the same end."""
    world = World()
    world.submit(call("a"), budget=Budget(seconds=3), retries=Retries(call=9, backoff=4))
    world.fail("a", fail_with("CUDA out of memory on rank 3", "EngineError", retryable=True))
    world.tick(3.0)
    failure = world.finish.failure
    assert failure is not None and failure.kind == "BudgetExceeded"
    assert "all 3 seconds are used up; raise `seconds`" in failure.message
    assert "last failure was try 1: EngineError: CUDA out of memory on rank 3" in failure.message


def test_a_limit_without_a_failed_try_reports_the_limit_alone() -> None:
    world = World()
    world.submit(call("a"), budget=Budget(seconds=3))
    world.tick(3.0)
    world.stopped("a")
    assert world.finish.failure is not None and world.finish.failure.message.endswith("raise `seconds`")


def test_a_vote_without_a_value_says_how_many_branches_failed_and_how_the_first_did() -> None:
    world = World()
    world.submit(call("a"), call("b"), call("c"), join("j", "a", "b", "c", best_effort=True))
    for name in "abc":
        world.fail(name, fail_with(f"no {name}"))
    failure = world.finish.failure
    assert failure is not None
    assert failure.message.endswith("first failure: r:a: ToolError: no a (3 of 3 branches failed)")


def test_a_vote_whose_branches_were_all_cancelled_says_why_the_first_was() -> None:
    world = World()
    world.submit(call("a"), call("b"), join("j", "a", "b", best_effort=True))
    for name in "ab":
        world.prune(name)
    assert world.node("a").story[-1][4] in world.node("j").story[-1][4]


def test_a_tick_before_its_time_does_not_shorten_the_wait_and_the_wish_is_said_again() -> None:
    world = World()
    world.submit(call("a"), retries=Retries(backoff=4))
    world.fail("a", RETRYABLE)
    assert world.tick(1.0) == [WakeAt(at=4.0)]
    assert world.state("a") == "waiting"
    world.tick(9.0)
    assert world.state("a") == "running"


def test_a_failure_that_does_not_say_it_is_retryable_is_final() -> None:
    world = World()
    world.submit(call("a"))
    world.fail("a", fail_with("wrong"))
    assert world.finish.failure == fail_with("wrong")


def test_a_lost_worker_costs_no_retry_and_no_wait() -> None:
    world = World()
    world.submit(call("a"), retries=Retries(call=1, lost=2, backoff=1))
    world.fail("a", LOST)
    assert world.state("a") == "running"
    world.fail("a", RETRYABLE)
    assert world.wake == 1.0
    world.tick()
    world.fail("a", LOST)
    assert world.state("a") == "running"
    world.fail("a", LOST)
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "WorkerLost"
    assert "after 4 tries" in world.finish.failure.message


@pytest.mark.parametrize("failure", [RETRYABLE, LOST])
def test_side_effects_are_never_tried_twice(failure: object) -> None:
    world = World()
    world.submit(call("a", side_effects=True), retries=Retries(call=5, lost=5))
    world.fail("a", failure)  # type: ignore[arg-type]
    assert world.finish.status == "failed"
    assert world.jobs == {}


def test_side_effects_on_a_lost_worker_are_said_to_be_unknown() -> None:
    world = World()
    world.submit(call("a", side_effects=True))
    world.down(returning=True)
    assert world.finish.failure is not None
    assert "whether it took effect is unknown" in world.finish.failure.message


def test_a_worker_that_goes_down_gives_its_steps_to_the_others() -> None:
    world = World(slots=2)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.up("v", 2)
    world.down("w")
    assert sorted(each.worker for each in world.jobs.values()) == ["v", "v"]
    assert world.states("a", "b") == ["running", "running"]


def test_news_of_attempts_that_are_gone_is_counted_and_ignored() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"))
    first = world.attempt("a")
    world.succeed("a", 1)
    done = Succeeded(at=0, attempt=first, result=Result(value=2))
    for event in (done, Failed(at=0, attempt=first, failure=RETRYABLE), Stopped(at=0, attempt=first)):
        assert world.send(event) == []
    assert world.machine.late == 3
    assert world.node("a").outcome.result == Result(value=1)


def test_a_cancelled_step_ends_at_once_and_its_slot_is_free_when_the_worker_has_answered() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b", quorum=1))
    world.submit(call("c"), run="s")
    attempt = world.attempt("a")
    world.cancel()
    assert "r" not in world.finishes
    assert world.machine.attempts[attempt].state == "stopping"
    assert world.states("a", "b", "j") == ["cancelled"] * 3
    assert world.state("s:c") == "ready"
    world.stopped("a")
    assert world.state("s:c") == "running"
    assert world.finish.status == "cancelled"


@pytest.mark.parametrize("answer", ["succeeded", "failed"])
def test_a_stopping_attempt_may_end_in_anything_and_it_does_not_count(answer: str) -> None:
    world = World()
    world.submit(call("a"), call("b"), join("j", "a", "b", quorum=1))
    world.succeed("a", 1)
    if answer == "succeeded":
        world.succeed("b", 2, tokens=5)
    else:
        world.fail("b", RETRYABLE, usage=Usage(completion=5))
    assert world.finish.result is not None
    assert world.finish.result.value == [1]
    assert world.finish.usage.cancelled == 5


def test_a_worker_that_does_not_confirm_a_cancel_loses_the_slot_after_the_grace() -> None:
    world = World(slots=1, grace=7)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.submit(call("c"), run="s")
    world.cancel()
    assert world.wake == 7.0
    world.tick()
    assert world.finish.status == "cancelled"
    assert world.state("s:c") == "running"
    late = world.machine.late
    world.send(Stopped(at=8, attempt=1))
    assert world.machine.late == late + 1


def test_a_silent_attempt_is_lost_after_its_lease_and_tried_again_beside_the_old_one() -> None:
    world = World(slots=2, lease=5, grace=1)
    world.submit(think("a"))
    world.now = 4
    world.progress("a", "x", 1)
    assert world.tick(5.0) == [WakeAt(at=9.0)]
    world.tick(9.0)
    assert [each.attempt for each in world.last if isinstance(each, Cancel)] == [1]
    assert [each.job.attempt for each in world.last if isinstance(each, Dispatch)] == [2]
    assert {number: each.state for number, each in world.machine.attempts.items()} == {1: "stopping", 2: "live"}
    world.tick(10.0)
    assert list(world.machine.attempts) == [2]
    world.succeed("a", "second", tokens=3)
    assert world.finish.result is not None
    assert world.finish.result.value == "second"
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (4, 1)


def test_without_a_lease_silence_is_for_ever() -> None:
    world = World()
    world.submit(think("a"))
    assert world.wake is None


def test_a_stop_that_nobody_asked_for_is_a_lost_worker() -> None:
    world = World()
    world.submit(think("a"), retries=Retries(lost=1))
    world.stopped("a", tokens=2)
    assert world.state("a") == "running"
    world.stopped("a", tokens=2)
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "WorkerLost"
    assert world.finish.usage.completion == world.finish.usage.cancelled == 4


def test_attempt_ids_are_never_used_again() -> None:
    world = World()
    world.submit(call("a"), retries=Retries(lost=9))
    seen = []
    for _ in range(5):
        seen.append(world.attempt("a"))
        world.fail("a", LOST)
    assert seen == sorted(set(seen))


def test_workers_lost_together_send_nothing_to_the_dead() -> None:
    world = World(slots=4)
    world.up("v", 4)
    world.submit(think("e", expands=True, priority=-1))
    world.expand("e", call("a"), call("b"), call("c"), call("d"), output=None, closed=False)
    world.down("w")
    assert not [each for each in world.last if isinstance(each, Cancel) and each.worker == "w"]
    assert world.state("e") == "running"


def test_why_a_worker_went_away_is_said_by_the_step_that_it_ran_and_by_those_that_find_none() -> None:
    world = World()
    world.submit(think("a"), retries=Retries(lost=0))
    world.down(reason="the engine broke: ValueError: head size 16")
    assert world.finish.failure is not None
    assert "head size 16" in world.finish.failure.message
    (finish,) = [each for each in world.submit(think("b"), run="s") if isinstance(each, Finish)]
    failure = finish.failure
    assert failure is not None and failure.code == "no-worker"
    assert "w went away: the engine broke: ValueError: head size 16" in failure.message


def test_a_step_that_ends_two_workers_is_not_given_to_a_third() -> None:
    world = World(slots=0)
    for name in ("a", "b", "c"):
        world.up(name, 1)
    world.submit(think("bad"))
    world.submit(think("fine"), run="s")
    for _ in range(2):
        worker = world.jobs[world.attempt("bad")].worker
        world.down(worker)
    assert world.finish.status == "failed"
    assert world.finish.failure is not None and world.finish.failure.kind == "EngineError"
    assert "not retried" in world.finish.failure.message
    assert sum(each.up for each in world.machine.workers.values()) == 1
    assert world.state("s:fine") == "running"
    world.succeed("s:fine", "x")
    assert world.finishes["s"].status == "done"


def test_a_step_that_loses_one_worker_twice_is_tried_again() -> None:
    """It says more of that worker than of the step: `Retries.lost` counts."""
    world = World(slots=1)
    world.submit(think("a"))
    for _ in range(3):
        world.down("w", returning=True)
        assert world.state("a") == "ready"
        world.up("w", 1)
        assert world.state("a") == "running"


def test_several_steps_that_lose_two_workers_are_tried_again() -> None:
    """Nobody can say which of them it was."""
    world = World(slots=0)
    world.up("a", 2)
    world.submit(think("x"), think("y"), join("j", "x", "y"))
    world.up("b", 2)
    world.down("a")
    assert world.states("x", "y") == ["running", "running"]
    world.up("c", 2)
    world.down("b")
    assert world.states("x", "y") == ["running", "running"]
