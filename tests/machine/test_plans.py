"""Which plans and patches are refused, with what message, and that a refused one leaves no trace."""

from __future__ import annotations

import pytest

from plait.core.errors import FieldError
from plait.core.ops import Ref
from plait.core.plan import Plan, Step
from tests.machine.kit import World, call, join, plan, think


def refusal(*steps: Step, output: str | None = "") -> str:
    """The message with which a first plan is refused."""
    world = World()
    world.submit(*steps, output=output)
    assert (world.machine.runs, world.machine.nodes, world.jobs) == ({}, {}, {})
    assert world.finish.status == "failed"
    assert world.finish.failure is not None
    assert world.finish.failure.kind == "PlanError"
    return world.finish.failure.message


def test_a_cycle_is_named() -> None:
    said = refusal(call("x"), call("a", "c", "x"), call("b", "a"), call("c", "b"), call("d", "a"))
    assert said == "the plan has a cycle: a needs c needs b needs a"


@pytest.mark.parametrize(
    "step",
    [
        call("a", "nobody"),
        call("a", args={"x": [{"$ref": "nobody"}]}),
        think("a", prompt=[Ref(step="nobody")]),
        think("a", after="nobody"),
        join("a", "nobody"),
    ],
)
def test_an_unknown_step_is_named_wherever_it_is_referred_to(step: Step) -> None:
    said = refusal(call("x"), step)
    assert said == "r:a refers to 'nobody', which is not a step in its scope: a, x"


@pytest.mark.parametrize(
    "step", [call("a", "a"), think("a", after="a"), join("a", "a"), think("a", prompt=[Ref(step="a")])]
)
def test_a_step_cannot_refer_to_itself(step: Step) -> None:
    assert refusal(step) == "r:a refers to itself"


def test_a_plan_must_say_which_step_is_the_answer() -> None:
    assert "names no output" in refusal(call("a"), output=None)
    assert refusal(call("a"), output="b") == "the output 'b' is not a step of the plan"
    assert refusal(output="b") == "the output 'b' is not a step of the plan"


@pytest.mark.parametrize("step", [call("x"), join("x", "y")])
def test_only_a_thought_has_a_context_to_continue(step: Step) -> None:
    assert "only a think step has a context" in refusal(call("y"), step, think("a", after="x"))


def test_a_quorum_of_more_than_there_are_is_refused() -> None:
    assert refusal(call("a"), call("b"), join("j", "a", "b", "a", quorum=3)) == (
        "r:j needs 3 finished branches and has 2: it could never close"
    )


def test_two_steps_of_one_name_are_no_plan() -> None:
    with pytest.raises(FieldError, match="two steps are named 'a'"):
        Plan(steps=(call("a"), call("a")), output="a")


def test_steps_may_stand_in_any_order() -> None:
    world = World()
    world.submit(join("j", "b", "a"), call("b", "a"), call("a"), output="j")
    world.succeed("a", 1)
    world.succeed("b", 2)
    assert world.finish.result is not None
    assert world.finish.result.value == [2, 1]


# -- patches -----------------------------------------------------------------------------------------------------------


def expander(*more: Step) -> World:
    world = World()
    world.submit(think("e", expands=True), *more, join("top", "e", *(each.name for each in more), best_effort=True))
    world.succeed("e", "plan")
    return world


def failed_with(world: World, step: str = "e") -> str:
    failure = world.node(step).outcome.failure
    assert failure is not None
    assert failure.kind == "PlanError"
    return failure.message


def test_a_step_cannot_need_the_value_of_the_step_that_expands_into_it() -> None:
    world = expander(call("x"))
    world.expand("e", think("a", prompt=[Ref(step="e")]))
    assert "r:e/a needs the value of r:e, which expands into it" in failed_with(world)


def test_nor_of_one_further_out() -> None:
    world = expander(call("x"))
    world.expand("e", think("f", expands=True))
    world.succeed("e/f", "plan")
    world.expand("e/f", call("a", "e"))
    assert "r:e/f/a needs the value of r:e" in failed_with(world, "e/f")


def test_a_step_cannot_need_what_waits_for_its_expander() -> None:
    world = expander(call("x"), call("y", "e", "x"), call("z", "y"))
    world.expand("e", call("a", "z"))
    assert failed_with(world) == "r:e/a needs r:z, which itself waits for r:e to end"


def test_a_cycle_through_two_expansions_is_refused() -> None:
    world = expander(think("f", expands=True))
    world.succeed("f", "plan")
    world.expand("e", call("a", "f"), closed=True)
    assert world.state("e") == "expanded"
    world.expand("f", call("b", "e"))
    assert failed_with(world, "f") == "r:f/b needs r:e, which itself waits for r:f to end"


def test_a_cycle_through_a_later_patch_is_refused() -> None:
    world = expander(think("f", expands=True), call("x"))
    world.succeed("f", "plan")
    world.expand("f", call("b", "e"), output=None, closed=False)
    world.expand("e", call("a", "x"), output=None, closed=False)
    world.expand("e", call("c", "f"))
    assert failed_with(world) == "r:e/c needs r:f, which itself waits for r:e to end"


def test_a_cycle_through_an_enclosing_scope_is_refused() -> None:
    world = expander()
    world.expand("e", think("f", expands=True), call("y", "f"))
    world.succeed("e/f", "plan")
    world.expand("e/f", call("a", "y"))
    assert failed_with(world, "e/f") == "r:e/f/a needs r:e/y, which itself waits for r:e/f to end"


def test_the_context_of_an_expander_may_be_continued_though_its_value_may_not_be_read() -> None:
    world = expander()
    world.expand("e", think("a", after="e"))
    assert world.state("e/a") == "running"


def test_an_output_cannot_be_changed() -> None:
    world = expander(call("x"))
    world.expand("e", call("a"), closed=False)
    world.expand("e", call("b"))
    assert failed_with(world) == "the output was already named: 'r:e/a', now 'r:e/b'"


def test_the_output_of_a_patch_is_a_step_of_its_own_scope() -> None:
    world = expander(call("x"))
    world.expand("e", call("a"), output="x")
    assert failed_with(world) == "the output 'x' is not a step of the plan"


def test_steps_of_two_expansions_do_not_see_one_another() -> None:
    world = expander(think("f", expands=True))
    world.succeed("f", "plan")
    world.expand("e", call("a"), closed=False)
    world.expand("f", call("b", "a"))
    assert "refers to 'a', which is not a step in its scope" in failed_with(world, "f")


def test_a_refused_patch_leaves_no_trace() -> None:
    world = expander(call("x"))
    before = world.node("x").consumers
    world.expand("e", call("a", "x"), call("b", "nobody"))
    assert world.node("x").consumers == before
    assert not [name for name in world.machine.nodes if name.startswith("r:e/")]


def test_a_wide_patch_over_a_long_scope_is_checked_once_for_each_step() -> None:
    """The search for cycles does not start anew for every reference (that took minutes for this plan)."""
    n = 2_000
    world = World(checked=False)
    chain = [call("s0"), *(call(f"s{i}", f"s{i - 1}") for i in range(1, n))]
    world.submit(*chain, think("e", expands=True), join("top", "e", f"s{n - 1}"))
    world.succeed("e", "plan")
    names = [f"t{i}" for i in range(n)]
    world.expand("e", *(call(name, f"s{n - 1 - i}") for i, name in enumerate(names)), join("j", *names))
    assert world.state("e") == "expanded"


def test_a_patch_is_a_plan() -> None:
    assert plan(call("a"), output=None).output is None
