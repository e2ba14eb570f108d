"""Expansion: patches while a step runs and after it, what is late, what is void, and what the step's value becomes."""

from __future__ import annotations

from plait.core.events import Cancel, Expand, Expanded
from plait.core.plan import Plan
from plait.core.request import Retries
from tests.machine.kit import World, call, fail_with, join, think


def test_a_stream_is_handed_to_the_reader_piece_by_piece_and_then_whole() -> None:
    world = World()
    world.submit(think("e", expands=True, stream=True))
    attempt = world.attempt("e")
    assert world.progress("e", "a b", 2) == [Expand(step="r:e", attempt=attempt, delta="a b")]
    assert world.progress("e", "", 1) == []
    (last,) = world.succeed("e", "a b c")
    assert isinstance(last, Expand)
    assert (last.attempt, last.delta) == (attempt, None)
    assert last.result is not None
    assert last.result.value == "a b c"


def test_without_stream_only_the_result_is_handed_over() -> None:
    world = World()
    world.submit(think("e", expands=True))
    assert world.progress("e", "a b", 2) == []


def test_a_step_is_patched_several_times_while_it_runs_and_its_steps_start_at_once() -> None:
    world = World()
    world.submit(think("e", expands=True, stream=True))
    world.expand("e", call("a"), output=None, closed=False)
    assert world.running() == ["e", "e/a"]
    world.expand("e", call("b", "a"), output=None, closed=False)
    assert world.running() == ["e", "e/a"]
    world.succeed("e/a", 1)
    assert world.running() == ["e", "e/b"]
    world.succeed("e", "the whole plan")
    assert world.states("e", "e/b") == ["expanding", "running"]
    world.expand("e", join("j", "a", "b"), closed=True)
    assert world.state("e") == "expanded"
    world.succeed("e/b", 2)
    assert world.finish.status == "done"
    assert world.finish.result is not None
    assert world.finish.result.value == [1, 2]
    assert world.finish.steps == 4


def test_an_open_scope_keeps_steps_that_nobody_reads_and_a_closed_one_does_not() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), call("b"), output=None, closed=False)
    world.succeed("e", "x")
    assert world.states("e/a", "e/b") == ["running", "running"]
    world.expand("e", output="a", closed=True)
    assert world.states("e/a", "e/b") == ["running", "cancelled"]


def test_an_output_can_be_a_step_of_an_earlier_patch_that_has_ended() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), output=None, closed=False)
    world.succeed("e/a", "early")
    world.succeed("e", "x")
    world.expand("e", output="a", closed=True)
    assert world.finish.result is not None
    assert world.finish.result.value == "early"


def test_without_an_output_a_step_keeps_its_own_value() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), output=None, closed=False)
    world.succeed("e", "own")
    world.expand("e", output=None)
    assert world.stopping == [2]
    world.stop_all()
    assert world.finish.result is not None
    assert world.finish.result.value == "own"


def test_close_without_a_patch_keeps_the_value() -> None:
    world = World()
    world.submit(call("e", expands=True))
    world.succeed("e", 5)
    world.expand("e", output=None)
    assert world.finish.result is not None
    assert world.finish.result.value == 5


def test_a_close_while_the_step_runs_is_not_the_last_word() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), closed=True)
    assert world.state("e") == "running"
    world.succeed("e", "x")
    assert world.state("e") == "expanding"
    world.expand("e", output=None)
    world.succeed("e/a", 7)
    assert world.finish.result is not None
    assert world.finish.result.value == 7


def test_a_patch_after_the_close_is_late() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.succeed("e", "x")
    attempt = world.node("e").attempts.generation
    world.expand("e", call("a"))
    assert world.expand("e", call("b"), attempt=attempt) == []
    assert world.machine.late == 1
    assert "r:e/b" not in world.machine.nodes


def test_a_patch_to_another_attempt_is_late() -> None:
    world = World()
    world.submit(think("e", expands=True))
    first = world.attempt("e")
    world.fail("e", fail_with(lost=True))
    assert world.attempt("e") != first
    assert world.expand("e", call("a"), attempt=first, closed=False) == []
    assert world.machine.late == 1


def test_a_patch_that_comes_twice_is_taken_once() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), call("b", "a"), output=None, closed=False)
    assert world.expand("e", call("a"), call("b", "a"), output=None, closed=False) == []
    assert world.machine.late == 1
    world.succeed("e", "x")
    world.succeed("e/a", 1)
    world.expand("e", call("a"), call("b", "a"), output=None, closed=True)
    world.stop_all()
    assert world.finish.status == "done"
    assert world.finish.steps == 3


def test_another_step_of_a_taken_name_fails_the_step() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), output=None, closed=False)
    world.expand("e", think("a"), output=None, closed=False)
    assert world.state("e") == "failed"
    world.stop_all()
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "PlanError"
    assert "already taken" in world.finish.failure.message


def test_a_retry_voids_the_patches_of_the_attempt_before() -> None:
    world = World()
    world.submit(think("e", expands=True), retries=Retries(backoff=0.5))
    world.expand("e", call("a"), call("b"), output=None, closed=False)
    world.succeed("e/a", 1)
    world.fail("e", fail_with(retryable=True))
    assert world.states("e", "e/a", "e/b") == ["waiting", "done", "cancelled"]
    world.tick()
    world.expand("e", call("a"), output=None, closed=False)
    assert world.running() == ["e", "e~2/a"]
    world.succeed("e", "again")
    world.expand("e", output="a")
    world.succeed("e~2/a", "second")
    world.stop_all()
    assert world.finish.result is not None
    assert world.finish.result.value == "second"


def test_a_reader_that_fails_fails_the_step_and_stops_its_attempt() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.expand("e", call("a"), output=None, closed=False)
    world.fail_expansion("e")
    assert world.states("e", "e/a") == ["failed", "cancelled"]
    assert [each.attempt for each in world.last if isinstance(each, Cancel)] == [1, 2]
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "PlannerError"


def test_a_plan_that_cannot_be_is_the_failure_of_the_step_and_a_join_may_tolerate_it() -> None:
    world = World()
    world.submit(think("e", expands=True), call("x"), join("j", "e", "x", best_effort=True))
    world.succeed("e", "x")
    world.expand("e", call("a", "nobody"))
    assert world.state("e") == "failed"
    world.succeed("x", 1)
    assert world.finish.status == "done"
    assert world.finish.result is not None
    assert world.finish.result.value == [1]


def test_the_failure_of_the_output_is_the_failure_of_the_step() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", "e"))
    world.succeed("e", "x")
    world.expand("e", call("a"))
    world.fail("e/a", fail_with("boom"))
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "DependencyFailed"
    assert "boom" in world.finish.failure.message


def test_a_step_inside_an_expansion_reads_steps_around_it_that_are_still_running() -> None:
    world = World()
    world.submit(call("x"), think("e", expands=True), join("j", "e", "x"))
    world.succeed("e", "plan")
    world.expand("e", join("k", "x"))
    world.succeed("x", 4)
    assert world.finish.result is not None
    assert world.finish.result.value == [[4], 4]


def test_a_step_added_to_what_has_failed_fails_and_to_what_was_stopped_is_stopped() -> None:
    world = World()
    world.submit(call("x"), think("e", expands=True), join("j", "e", "x", best_effort=True))
    world.fail("x")
    world.succeed("e", "plan")
    world.expand("e", call("a", "x"))
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert "x" in world.finish.failure.message


def test_expansions_nest_and_end_from_the_inside_out() -> None:
    world = World()
    world.submit(think("e", expands=True))
    name = "e"
    for _ in range(30):
        world.succeed(name, "deeper")
        world.expand(name, think("n", expands=True))
        name += "/n"
    world.succeed(name, "bottom")
    world.expand(name, output=None)
    assert world.finish.result is not None
    assert world.finish.result.value == "bottom"
    assert world.finish.steps == 31


def test_a_join_expands_once_it_has_its_verdict_and_lets_the_rest_go() -> None:
    world = World()
    world.submit(call("a"), call("b"), call("c"), join("j", "a", "b", "c", quorum=2, expands=True))
    world.succeed("a", 1)
    world.succeed("b", 2)
    (expand,) = [each for each in world.last if isinstance(each, Expand)]
    assert expand.attempt == 0
    assert expand.result is not None
    assert expand.result.value == [1, 2]
    assert world.states("c", "j") == ["cancelled", "expanding"]
    world.stop_all()
    world.expand("j", think("s"))
    world.succeed("j/s", "sum")
    assert world.finish.result is not None
    assert world.finish.result.value == "sum"


def test_joins_that_start_with_their_branches_done_count_them_once() -> None:
    world = World()
    world.submit(call("slow"), think("e", expands=True), join("top", "e", "slow"))
    world.succeed("e", "plan")
    world.expand("e", call("d"), output=None, closed=False)
    world.succeed("e/d", 1)
    world.expand("e", join("one", "d"), join("two", "one", "slow", quorum=2), closed=True)
    assert world.states("e/one", "e/two", "slow") == ["done", "waiting", "running"]
    world.succeed("slow", 2)
    assert world.finish.result is not None
    assert world.finish.result.value == [[[1], 2], 2]


def test_a_patch_drops_steps_around_it_that_have_not_begun() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"), call("c", "b"), think("e", expands=True), join("j", "c", "e"), output="j")
    node = world.machine.nodes["r:e"]

    def drop(*names: str) -> None:
        attempt = node.attempts.generation
        world.send(Expanded(at=world.now, step="r:e", attempt=attempt, patch=Plan(steps=(), drops=names)))

    drop("a")
    assert world.states("a", "b") == ["running", "waiting"], "what has begun goes on"
    drop("b")
    assert world.states("a", "b", "c") == ["cancelled", "cancelled", "cancelled"], "unneeded, dropped, lacks its need"
    drop("nobody")
    assert node.outcome.failure is not None
    assert node.outcome.failure.kind == "PlanError"
    assert "refers to 'nobody'" in node.outcome.failure.message
