"""What a user may do to a run besides cancelling it: give one step up, and hold back what has not started."""

from __future__ import annotations

from plait.core.budget import Budget
from plait.core.events import Cancel, Dispatch, WorkerUp
from tests.machine.kit import World, call, fail_with, join, think


def test_a_pruned_branch_is_left_out_and_stopped() -> None:
    world = World()
    world.submit(think("a"), think("b"), join("j", "a", "b", best_effort=True))
    actions = world.prune("a")
    assert [(each.step, each.attempt, each.cause, each.about) for each in actions if isinstance(each, Cancel)] == [
        ("r:a", 1, "pruned", "")
    ]
    assert world.states("a", "b", "j") == ["cancelled", "running", "waiting"]
    world.succeed("b", value="x")
    world.stop_all()
    assert (world.finish.status, world.finish.result and world.finish.result.value) == ("done", ["x"])


def test_what_a_pruned_step_alone_reads_is_given_up_with_it() -> None:
    world = World()
    world.submit(call("root"), call("a", "root"), call("b"), join("j", "a", "b", best_effort=True))
    world.prune("a")
    assert world.states("root", "a", "b") == ["cancelled", "cancelled", "running"]


def test_pruning_an_expanded_step_ends_all_of_its_expansion() -> None:
    world = World()
    world.submit(think("a", expands=True), think("b"), join("j", "a", "b", best_effort=True))
    world.succeed("a")
    world.expand("a", call("c"), call("d", "c"))
    assert world.states("a", "a/c", "a/d") == ["expanded", "running", "waiting"]
    world.prune("a")
    assert world.states("a", "a/c", "a/d", "b") == ["cancelled", "cancelled", "cancelled", "running"]


def test_pruning_the_output_ends_the_run_and_says_why() -> None:
    world = World()
    world.submit(call("a"))
    world.prune("a")
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.message == "pruned by the user"


def test_pruning_what_has_ended_is_late_news() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"))
    world.succeed("a")
    assert world.prune("a") == []
    assert world.prune("nobody") == []
    assert world.machine.late == 2
    assert world.state("a").value == "done"


def test_a_paused_run_starts_nothing_and_what_runs_goes_on() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.pause()
    world.succeed("a")
    assert world.states("a", "b") == ["done", "ready"]
    assert not world.said(Dispatch)
    world.pause(on=False)
    assert world.running() == ["b"]
    world.succeed("b")
    assert world.finish.status == "done"


def test_other_runs_take_the_slots_of_a_paused_one() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.submit(call("x"), run="other")
    world.pause()
    world.succeed("a")
    assert world.running() == ["other:x"]


def test_steps_keep_their_order_over_a_pause() -> None:
    world = World(slots=1)
    world.submit(call("z"), call("c", priority=1), call("a"), call("b"), join("j", "z", "a", "b", "c"))
    world.pause()
    world.succeed("z")
    world.pause(on=False)
    order = []
    while world.jobs:
        order += world.running()
        world.succeed(order[-1])
    assert order == ["a", "b", "c"]


def test_a_paused_run_can_be_cancelled() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.pause()
    world.cancel()
    world.stop_all()
    assert world.finish.status == "cancelled"
    assert world.pause(on=False) == []
    assert world.machine.late == 1


def test_what_a_budget_holds_back_is_asked_about_again_after_a_pause() -> None:
    world = World()
    world.submit(call("a"), call("b"), call("c"), join("j", "a", "b", "c"), budget=Budget(width=1))
    world.pause()
    world.succeed("a")
    assert world.running() == []
    world.pause(on=False)
    assert world.running() == ["b"]
    world.succeed("b")
    assert world.running() == ["c"]


def test_time_runs_on_while_a_run_is_paused() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), join("j", "a", "b"), budget=Budget(seconds=5))
    world.pause()
    world.succeed("a")
    world.tick()
    assert world.finish.status == "partial"


def test_a_wider_run_starts_what_its_width_had_held_back_and_a_narrower_one_starts_less() -> None:
    world = World(slots=8)
    names = [f"a{i}" for i in range(6)]
    world.submit(*map(call, names), join("j", *names), budget=Budget(width=1))
    assert world.running() == ["a0"]
    world.limit(width=3)
    assert world.running() == ["a0", "a1", "a2"]
    world.limit(width=1)
    world.succeed("a0")
    world.succeed("a1")
    assert world.running() == ["a2"], "nothing is stopped, and nothing begins while more run than the width allows"
    world.succeed("a2")
    assert world.running() == ["a3"]
    world.limit()
    assert world.running() == ["a3", "a4", "a5"]


def test_a_run_without_limits_can_be_given_some_and_what_it_has_used_counts() -> None:
    world = World(slots=8)
    names = [f"a{i}" for i in range(4)]
    world.submit(*map(call, names), call("b", "a0"), call("c", "b"), join("j", *names, "c"))
    world.succeed("a0")
    assert world.running() == ["a1", "a2", "a3", "b"]
    world.limit(width=1)
    world.succeed("b")
    assert world.state("c").value == "ready"
    for name in names[1:]:
        world.succeed(name)
    assert world.running() == ["c"]
    account = world.machine.runs["r"].account
    assert account is not None and (account.attempts, account.running, account.steps) == (6, 1, 7)
    world.limit(attempts=6)
    world.succeed("c")
    assert world.finish.status == "done"


def test_attempts_that_were_used_up_before_a_limit_refuse_what_comes() -> None:
    world = World(slots=8)
    world.submit(call("a"), call("b", "a"))
    world.limit(attempts=1)
    world.succeed("a")
    assert world.finish.status == "partial"
    assert world.finish.failure is not None and "all 1 attempts are used up" in world.finish.failure.message


def test_limits_of_groups_and_steps_stay_inside_those_that_a_run_is_given() -> None:
    world = World(slots=8)
    world.submit(call("x", budget=Budget(attempts=3)), call("y"), call("z", "x", "y"))
    world.limit(width=1)
    account = world.machine.runs["r"].account
    inner = world.machine.nodes["r:x"].account
    assert inner is not None and inner is not account and inner.around == (account,)
    assert account is not None and account.running == 2
    world.succeed("x")
    world.succeed("y")
    assert account.running == 1 and world.running() == ["z"]


def test_fewer_tokens_than_were_used_cut_what_runs() -> None:
    world = World(slots=0)
    world.send(WorkerUp(at=0.0, worker="w", slots=4, serves=("think",), reports=16))
    world.submit(think("a"), think("b"), join("j", "a", "b"), budget=Budget(tokens=500))
    world.progress("a", "x", tokens=30)
    actions = world.limit(tokens=20)
    assert sorted(each.step for each in actions if isinstance(each, Cancel)) == ["r:a", "r:b"]


def test_more_seconds_keep_a_run_alive_and_fewer_end_it() -> None:
    world = World(slots=1)
    world.submit(call("a"), budget=Budget(seconds=5))
    world.limit(seconds=50)
    world.tick(world.now + 6)
    assert world.running() == ["a"]
    world.limit(seconds=3)
    world.tick()
    world.stop_all()
    assert world.finish.status == "failed" and "all 3 seconds" in (world.finish.failure or fail_with()).message


def test_limits_for_a_run_that_is_over_are_late_news() -> None:
    world = World(slots=1)
    world.submit(call("a"))
    world.succeed("a")
    assert world.limit(width=3) == [] and world.machine.late == 1
