"""How runs end: steps no longer needed, cancel, partial results, statuses, one Finish, usage and critical path."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.events import Cancel, Finish
from plait.core.interfaces import Policy, Stop
from plait.core.plan import Step
from plait.core.result import Usage
from tests.machine.kit import World, call, fail_with, join, think


def test_what_nobody_reads_is_cancelled_and_so_on_upstream() -> None:
    world = World()
    world.submit(call("root"), call("mid", "root"), call("dead", "mid"), call("alive"), output="alive")
    assert world.states("root", "mid", "dead", "alive") == ["cancelled", "cancelled", "cancelled", "running"]
    assert world.node("root").story[-1][4] == "no longer needed"
    world.stop_all()
    world.succeed("alive")
    assert world.finish.status == "done"


def test_what_somebody_else_reads_is_kept() -> None:
    world = World()
    world.submit(
        call("a"), call("b", "a"), call("c", "a"), call("x"), join("j", "b", "x", quorum=1), join("k", "j", "c")
    )
    world.succeed("x")
    assert world.states("b", "a", "c") == ["cancelled", "running", "waiting"]


def test_failure_travels_down_as_its_first_cause() -> None:
    world = World()
    world.submit(call("a"), call("b", "a"), call("c", "b"), call("d", "c"))
    world.fail("a", fail_with("boom"))
    assert world.finish.failure is not None
    assert world.finish.failure.message == "r:a: ToolError: boom"
    assert world.finish.status == "failed"


def test_a_failure_lets_go_of_what_else_was_needed() -> None:
    world = World()
    world.submit(call("a"), call("b"), call("c", "a", "b"))
    world.fail("a")
    assert world.stopping == [2]
    assert "r" not in world.finishes
    world.stop_all()
    assert world.finish.status == "failed"


LONG = 20_000  # far beyond the interpreter's recursion limit


@pytest.fixture(scope="module")
def chain() -> list[Step]:
    """Steps of which each needs the one before."""
    return [call("s0"), *(call(f"s{i}", f"s{i - 1}") for i in range(1, LONG))]


@pytest.mark.parametrize(("how", "status"), [("fail", "failed"), ("cancel", "cancelled"), ("no worker", "failed")])
def test_chains_of_any_length_end(chain: list[Step], how: str, status: str) -> None:
    world = World(checked=False)
    world.submit(*chain)
    match how:
        case "fail":
            world.fail("s0")
        case "cancel":
            world.cancel()
        case _:
            world.down()
    world.stop_all()
    assert world.finish.status == status
    assert world.machine.nodes == {}


def test_a_long_chain_is_done_step_by_step() -> None:
    world = World(checked=False)
    world.submit(call("s0"), *(join(f"s{i}", f"s{i - 1}", merge="first") for i in range(1, LONG)))
    world.succeed("s0", "v")
    assert world.finish.result is not None
    assert world.finish.result.value == "v"


def test_a_long_chain_that_nobody_reads_is_cancelled(chain: list[Step]) -> None:
    world = World(checked=False)
    world.submit(*chain, call("x"), join("j", f"s{LONG - 1}", "x", quorum=1))
    world.succeed("x")
    world.stop_all()
    assert world.finish.status == "done"


def test_expansions_nested_a_thousand_deep_end() -> None:
    world = World(checked=False)
    world.submit(think("e", expands=True))
    name = "e"
    for _ in range(1000):
        world.succeed(name, "deeper")
        world.expand(name, think("n", expands=True))
        name += "/n"
    world.cancel()
    world.stop_all()
    assert world.finish.status == "cancelled"


def test_cancel_ends_everything_at_once_and_finishes_when_workers_have_answered() -> None:
    world = World(slots=1)
    world.submit(call("a"), call("b"), think("e", expands=True), join("j", "a", "b", "e"))
    world.succeed("a", "kept")
    world.cancel()
    assert [(each.step, each.attempt) for each in world.last if isinstance(each, Cancel)] == [
        ("r:b", 2),
        ("r:e", None),
        ("r:j", None),
    ]
    assert world.cancel() == []
    world.stopped("b", tokens=3)
    assert world.finish.status == "cancelled"
    assert world.finish.failure is not None
    assert world.finish.failure.message == "cancelled by the user"
    assert world.finish.partial == {"r:a": "kept"}
    assert world.finish.usage == Usage(completion=3, cancelled=3)


def test_cancel_of_one_run_leaves_the_others() -> None:
    world = World()
    world.submit(call("a"))
    world.submit(call("a"), run="s")
    world.cancel()
    world.stop_all()
    world.succeed("s:a", 1)
    assert (world.finish.status, world.finishes["s"].status) == ("cancelled", "done")


def test_a_cancel_that_comes_after_the_answer_does_not_take_it_back() -> None:
    world = World()
    world.submit(call("a"), call("b"), join("j", "a", "b", quorum=1))
    world.succeed("a", 1)
    world.cancel()
    world.stop_all()
    assert world.finish.status == "done"


def test_a_cancel_that_comes_after_the_failure_does_not_hide_it() -> None:
    world = World()
    world.submit(call("a"), call("b"), join("j", "a", "b"))
    world.fail("a", fail_with("boom"))
    world.cancel()
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert "boom" in world.finish.failure.message


def test_a_run_finishes_once_and_then_its_news_is_late() -> None:
    world = World()
    world.submit(call("a"))
    world.succeed("a", 1)
    assert list(world.finishes) == ["r"]
    before = world.machine.late
    assert world.cancel() == []
    assert world.submit(call("a")) == []
    assert world.machine.late == before + 2
    assert [run.id for run in world.machine.retired] == []


def test_an_answer_cut_by_a_limit_is_partial_all_the_way_down() -> None:
    world = World()
    world.submit(think("a", tokens=50, budget=Budget(tokens=10)), think("b", "a"), think("c", "b"), budget=Budget())
    world.succeed("a", tokens=10, finish="length")
    world.succeed("b")
    world.succeed("c")
    assert world.finish.result is not None
    assert world.finish.result.value == "v"


@pytest.mark.parametrize(("any_done", "status"), [(True, "partial"), (False, "failed")])
def test_a_run_that_ran_out_is_partial_if_anything_is_done(any_done: bool, status: str) -> None:
    world = World()
    world.submit(call("a"), call("b", "a"), budget=Budget(attempts=1 if any_done else 0))
    if any_done:
        world.succeed("a", 5)
    assert world.finish.status == status
    assert world.finish.partial == ({"r:a": 5} if any_done else {})
    assert world.finish.result is None


def test_a_limit_inside_an_expansion_makes_the_run_partial_though_its_own_step_only_failed() -> None:
    world = World()
    world.submit(call("e", expands=True), call("z", "e"), budget=Budget(attempts=2))
    world.succeed("e", "plan")
    world.expand("e", call("a"), call("b", "a"), call("c", "b"))
    world.succeed("e/a", 1)
    assert world.finish.status == "partial"
    assert world.finish.partial == {"r:e": "plan", "r:e/a": 1}
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "DependencyFailed"


def test_a_request_that_cannot_be_read_or_names_no_such_plugin_finishes_at_once() -> None:
    world = World()
    world.submit(call("a"), text="unreadable")
    world.submit(call("a"), run="s", policies=["nobody"])
    world.submit(call("a"), join("j", "a", merge="nobody"), run="t")
    kinds = {run: finish.failure.kind for run, finish in world.finishes.items() if finish.failure is not None}
    assert kinds == {"r": "TaskError", "s": "PluginError", "t": "PluginError"}
    assert world.machine.runs == {}


class Raises(Policy):
    """Raises wherever it is asked about `b`, in the way that it is told."""

    where: str

    def rank(self, step, view):  # type: ignore[no-untyped-def]
        if self.where == "rank" and step.plan.name == "b":
            raise KeyError("no rank")
        return ("high",) if self.where == "rank-type" and step.plan.name == "b" else ()

    def place(self, step, view):  # type: ignore[no-untyped-def]
        if self.where == "place" and step.plan.name == "b":
            raise KeyError("no place")
        return ["w"] if self.where == "place-type" and step.plan.name == "b" else None

    def review(self, event, view):  # type: ignore[no-untyped-def]
        if self.where == "review":
            raise KeyError("no review")
        return 5 if self.where == "review-type" else ()


class StopB(Policy):
    """Stops `b` at the first news."""

    def review(self, event, view):  # type: ignore[no-untyped-def]
        return [Stop("r:b", "no use")]


class StopsByName(Policy):
    """Stops what it is told to at the first news."""

    step: str

    def review(self, event, view):  # type: ignore[no-untyped-def]
        return [Stop(self.step, "no use")]


@pytest.mark.parametrize("where", ["rank", "rank-type", "place", "place-type", "review", "review-type"])
def test_a_policy_that_raises_or_talks_nonsense_fails_its_run_and_no_other(where: str) -> None:
    world = World(policies={"bad": Raises(where=where)})
    world.submit(call("a"), run="s")
    world.submit(call("a"), call("x"), call("b", "a"), join("j", "b", "x"), policies=["bad"])
    world.succeed("r:a")
    world.stop_all()
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "PluginError"
    assert "Raises raised" in world.finish.failure.message
    world.succeed("s:a")
    assert world.finishes["s"].status == "done"


@pytest.mark.parametrize(("step", "hint"), [("b", "; did you mean 'r:b'?"), ("r:nobody", ""), ("s:a", "")])
def test_an_order_for_a_step_that_is_not_there_fails_the_run_in_words(step: str, hint: str) -> None:
    """A name in place of an id would otherwise be a policy that does nothing, silently."""
    world = World(policies={"stops": StopsByName(step=step)})
    world.submit(call("a"), run="s")
    world.submit(call("a"), call("b"), join("j", "a", "b"), policies=["stops"])
    world.succeed("r:a")
    world.stop_all()
    assert world.finish.failure is not None
    said = f"StopsByName raised PluginError: it stops or hedges {step!r}, which is not the id of a step of the run 'r'"
    assert world.finish.failure.message == f"{said}{hint} (an id is `step.id`)"
    world.succeed("s:a")
    assert world.finishes["s"].status == "done"


def test_policies_are_not_asked_about_a_run_that_has_its_answer() -> None:
    world = World(policies={"bad": Raises(where="review")})
    world.submit(call("a"), policies=["bad"])
    world.succeed("a", 1)
    assert world.finish.status == "done"


def test_a_step_that_a_policy_stops_in_the_light_of_news_does_not_start_because_of_it() -> None:
    world = World(slots=1, policies={"prune": StopB()})
    world.submit(call("a"), call("b"), call("c"), join("j", "a", "b", "c"), policies=["prune"])
    world.succeed("a")
    assert world.running() == ["c"]
    assert world.state("b") == "cancelled"


def test_usage_adds_up_over_all_attempts() -> None:
    world = World()
    world.submit(think("a"), think("b"), join("j", "a", "b", quorum=1))
    world.fail("a", fail_with(retryable=True), usage=Usage(prompt=10, cached=2, completion=4, cost=1.0))
    world.tick()
    world.succeed("a", usage=Usage(prompt=10, cached=8, completion=5, cost=1.0))
    world.stopped("b", tokens=7)
    assert world.finish.usage == Usage(prompt=20, cached=10, completion=16, cancelled=11, cost=2.0)


def test_the_critical_path_is_the_chain_with_most_generated_tokens() -> None:
    world = World()
    world.submit(think("a"), think("b", "a"), think("c", "a"), call("t", "b"), join("j", "t", "c"), think("d", "j"))
    world.succeed("a", tokens=10)
    world.succeed("b", tokens=5)
    world.succeed("c", tokens=8)
    world.succeed("t")
    world.succeed("d", tokens=3)
    assert world.finish.critical_path_tokens == 21
    assert world.finish.usage.completion == 26


def test_the_critical_path_leaves_out_branches_that_the_answer_was_not_made_from() -> None:
    world = World()
    world.submit(think("a"), think("b"), join("j", "a", "b", quorum=1))
    world.succeed("a", tokens=4)
    world.stopped("b", tokens=90)
    assert world.finish.critical_path_tokens == 4


def test_the_critical_path_runs_through_expansions() -> None:
    world = World()
    world.submit(think("e", expands=True, stream=True), think("z", "e"))
    world.progress("e", "x", 4)
    world.expand("e", think("t"), output=None, closed=False)
    world.succeed("e/t", tokens=3)
    assert world.node("e/t").path_tokens.total == 7  # four tokens had been generated when it was spawned
    world.succeed("e", tokens=10)
    world.expand("e", think("u", after="e"), join("k", "u", "t"))
    world.succeed("e/u", tokens=5)
    assert world.node("e/u").path_tokens.total == 15
    world.succeed("z", tokens=1)
    assert world.finish.critical_path_tokens == 16


def test_a_join_inside_an_expansion_comes_after_what_the_expander_had_generated() -> None:
    world = World()
    world.submit(think("x"), think("e", "x", expands=True))
    world.succeed("x", tokens=3)
    world.succeed("e", tokens=50)
    world.expand("e", join("k", "x"))
    assert world.node("e/k").path_tokens.total == 53
    assert world.finish.critical_path_tokens == 53


def test_an_expander_is_no_shorter_than_what_it_generated_itself() -> None:
    world = World()
    world.submit(think("e", expands=True, stream=True))
    world.progress("e", "x", 4)
    world.expand("e", think("t"), output="t", closed=False)
    world.succeed("e/t", tokens=3)
    world.succeed("e", tokens=10)
    world.expand("e", output=None)
    assert world.finish.critical_path_tokens == 10


def test_a_run_without_an_answer_has_the_longest_path_that_was_generated() -> None:
    world = World()
    world.submit(think("a"), think("b", "a"), call("c", "b"))
    world.succeed("a", tokens=4)
    world.succeed("b", tokens=6)
    world.fail("c")
    assert world.finish.critical_path_tokens == 10
    assert isinstance(world.last[-1], Finish)
