"""Joins: all, quorum, best effort, deadline, early; pruned branches; merges that raise."""

from __future__ import annotations

import pytest

from plait.core.events import Cancel
from plait.core.interfaces import Policy, Stop
from tests.machine.kit import World, call, fail_with, join


class PruneAfter(Policy):
    """Gives `victim` up once `trigger` is done."""

    trigger: str = "r:a"
    victim: str = "r:b"

    def review(self, event, view):  # type: ignore[no-untyped-def]
        if view.subject is not None and view.subject.id == self.trigger and view.subject.state == "done":
            return [Stop(self.victim, "no use")]
        return []


BRANCHES = ("a", "b", "c")


def three(**options: object) -> World:
    world = World(policies={"prune": PruneAfter()})
    policies = options.pop("policies", ())
    world.submit(*map(call, BRANCHES), join("j", *BRANCHES, **options), policies=policies)  # type: ignore[arg-type]
    return world


def value(world: World) -> object:
    world.stop_all()
    assert world.finish.result is not None
    return world.finish.result.value


def test_all_waits_for_all_and_keeps_the_order_of_the_plan() -> None:
    world = three()
    for name in ("c", "a", "b"):
        assert world.state("j") == "waiting"
        world.succeed(name, name)
    assert value(world) == ["a", "b", "c"]
    assert world.finish.result is not None
    assert world.finish.result.why == "3 of 3"


def test_all_fails_with_its_first_failed_branch_and_cancels_the_rest() -> None:
    world = three()
    world.succeed("a")
    world.fail("b", fail_with("boom"))
    assert world.states("a", "b", "c", "j") == ["done", "failed", "cancelled", "failed"]
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert (world.finish.failure.kind, world.finish.failure.message) == ("DependencyFailed", "r:b: ToolError: boom")
    assert world.finish.partial == {"r:a": "v"}


def test_quorum_closes_at_its_number_and_cancels_the_rest() -> None:
    world = three(quorum=2)
    world.succeed("c", 3)
    world.succeed("a", 1)
    assert [each.step for each in world.last if isinstance(each, Cancel)] == ["r:b"]
    assert value(world) == [1, 3]
    assert world.finish.status == "done"


def test_quorum_tolerates_failures_while_it_can_be_reached() -> None:
    world = three(quorum=2)
    world.fail("a")
    world.succeed("b", 2)
    world.succeed("c", 3)
    assert value(world) == [2, 3]


def test_quorum_fails_as_soon_as_it_cannot_be_reached() -> None:
    world = three(quorum=2)
    world.fail("a", fail_with("one"))
    world.fail("b", fail_with("two"))
    assert world.states("c", "j") == ["cancelled", "failed"]
    world.stop_all()
    assert world.finish.failure is not None
    assert "needs 2 branches and can get no more than 1" in world.finish.failure.message
    assert "r:a: ToolError: one" in world.finish.failure.message


def test_best_effort_waits_for_all_and_merges_those_that_are_done() -> None:
    world = three(best_effort=True)
    world.fail("a")
    world.succeed("c", 3)
    assert world.state("j") == "waiting"
    world.succeed("b", 2)
    assert value(world) == [2, 3]


def test_best_effort_fails_if_nothing_is_done() -> None:
    world = three(best_effort=True)
    for name in BRANCHES:
        world.fail(name, fail_with(name))
    assert world.finish.failure is not None
    assert "got a value from none of its branches; first failure: r:a" in world.finish.failure.message


def test_any_end_merges_even_if_nothing_is_done() -> None:
    world = three(any_end=True)
    for name in BRANCHES[:-1]:
        world.fail(name)
    assert world.state("j") == "waiting"
    world.fail(BRANCHES[-1])
    assert value(world) == []
    assert world.finish.status == "done"


@pytest.mark.parametrize(
    ("options", "done", "status"),
    [
        ({}, 2, "failed"),
        ({"quorum": 2}, 1, "failed"),
        ({"best_effort": True}, 1, "partial"),
        ({"best_effort": True}, 0, "failed"),
        ({"any_end": True}, 0, "partial"),
    ],
)
def test_a_deadline_closes_over_what_is_done_if_that_is_enough(options: dict, done: int, status: str) -> None:
    world = three(deadline=5.0, **options)
    for name in BRANCHES[:done]:
        world.succeed(name, name)
    world.tick()
    assert world.now == 5
    assert world.node("j").state == ("done" if status == "partial" else "failed")
    assert world.states(*BRANCHES[done:]) == ["cancelled"] * (3 - done)
    world.stop_all()
    failure = world.finish.failure
    if status == "partial":
        assert world.finish.result is not None
        assert world.finish.result.partial
        assert value(world) == ["a"][:done]
    else:
        assert failure is not None
        assert failure.kind == "DeadlineExceeded"
        assert "after 5 s" in failure.message
    assert world.finish.status == ("partial" if done or status == "partial" else "failed")


def test_a_deadline_after_the_end_does_nothing() -> None:
    world = three(deadline=5.0, quorum=1)
    world.submit(call("x"), run="s")
    world.succeed("a", 1)
    assert value(world) == [1]
    world.tick(6)
    assert world.state("s:x") == "running"


def test_early_closes_when_the_vote_can_no_longer_change() -> None:
    names = ["a", "b", "c", "d", "e"]
    world = World(slots=5)
    world.submit(*map(call, names), join("j", *names, merge="vote", early=True))
    world.succeed("a", "x")
    world.succeed("b", "y")
    world.succeed("c", "x")
    assert world.state("j") == "waiting"
    world.succeed("d", "x")
    assert world.states("e", "j") == ["cancelled", "done"]
    assert value(world) == "x"
    assert world.finish.status == "done"


def test_early_holds_for_a_quorum_too_whose_other_branches_will_not_be_heard() -> None:
    names = ["a", "b", "c", "d", "e"]
    world = World(slots=5)
    world.submit(*map(call, names), join("j", *names, merge="vote", early=True, quorum=3))
    world.succeed("a", "x")
    assert world.state("j") == "waiting"
    world.succeed("b", "x")
    assert world.state("j") == "done"


def test_without_early_the_merge_is_not_asked() -> None:
    world = World(slots=5)
    world.submit(*map(call, BRANCHES), join("j", *BRANCHES, merge="broken-decided"))
    for name in BRANCHES:
        world.succeed(name)
    assert world.finish.status == "done"


def test_a_pruned_branch_is_no_failure() -> None:
    world = three(policies=["prune"])
    world.succeed("a", 1)
    assert world.state("b") == "cancelled"
    assert world.node("b").story[-1][4] == "no use"
    world.succeed("c", 3)
    assert value(world) == [1, 3]
    assert world.finish.status == "done"


def test_a_quorum_that_pruning_made_impossible_stops_the_join_without_a_failure() -> None:
    world = three(policies=["prune"], quorum=3)
    world.succeed("a", 1)
    assert world.states("b", "c", "j") == ["cancelled", "cancelled", "cancelled"]
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "Cancelled"
    assert world.finish.partial == {"r:a": 1}


def test_what_needs_a_pruned_step_is_stopped_with_it_up_to_the_join() -> None:
    world = World(policies={"prune": PruneAfter()})
    world.submit(call("a"), call("b"), call("b2", "b"), call("b3", "b2"), join("j", "a", "b3"), policies=["prune"])
    world.succeed("a", 1)
    assert world.states("b", "b2", "b3") == ["cancelled"] * 3
    assert value(world) == [1]


@pytest.mark.parametrize(("merge", "early"), [("broken", False), ("broken-decided", True)])
def test_a_merge_that_raises_fails_the_join_and_nothing_else(merge: str, early: bool) -> None:
    world = World()
    world.submit(
        call("x"),
        *map(call, BRANCHES),
        join("j", *BRANCHES, merge=merge, early=early),
        join("top", "j", "x", best_effort=True),
    )
    for name in BRANCHES:
        if world.state(name) == "running":
            world.succeed(name)
    assert world.state("j") == "failed"
    assert world.node("j").outcome.failure is not None
    assert world.node("j").outcome.failure.kind == "PluginError"  # type: ignore[union-attr]
    assert "raised ZeroDivisionError" in str(world.node("j").outcome.failure)
    world.succeed("x", 0)
    assert value(world) == [0]


def test_one_branch_may_be_named_twice_and_counts_once() -> None:
    world = World()
    world.submit(call("a"), join("j", "a", "a"))
    world.succeed("a", 1)
    assert value(world) == [1]
