"""`ModelCall.after` and references: what a job holds, token for token, inside an expansion and outside it."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.ops import ModelCall, Ref, Text, Tokens, ToolCall
from tests.machine.kit import World, call, join, think


def prompt(world: World, step: str) -> tuple[object, ...]:
    op = world.job(step).op
    assert isinstance(op, ModelCall)
    return op.prompt


def args(world: World, step: str) -> dict[str, object]:
    op = world.job(step).op
    assert isinstance(op, ToolCall)
    return dict(op.args)


def test_a_context_is_continued_with_the_token_ids_of_prompt_and_output() -> None:
    world = World()
    world.submit(think("a"), think("b", after="a", prompt="more"), think("c", after="b", prompt=""))
    world.succeed("a", "text", prompt_ids=[1, 2], token_ids=[3, 4])
    assert prompt(world, "b") == (Tokens(ids=(1, 2, 3, 4)), Text(text="more"))
    world.succeed("b", "more text", prompt_ids=[1, 2, 3, 4, 9], token_ids=[5])
    assert prompt(world, "c") == (Tokens(ids=(1, 2, 3, 4, 9, 5)),)


def test_without_ids_a_context_is_continued_as_the_text_that_was_sent_and_the_text_that_came() -> None:
    world = World()
    world.submit(
        call("x"),
        think("a", prompt=[Text(text="see "), Ref(step="x")]),
        think("b", after="a", prompt="then"),
        think("c", after="b"),
    )
    world.succeed("x", {"n": 1})
    world.succeed("a", "one")
    assert prompt(world, "b") == (Text(text="see "), Text(text='{"n":1}'), Text(text="one"), Text(text="then"))
    world.succeed("b", "two")
    assert prompt(world, "c")[-2:] == (Text(text="two"), Text(text="p"))


def test_ids_of_the_prompt_alone_do_not_lose_the_output() -> None:
    world = World()
    world.submit(think("a"), think("b", after="a", prompt="more"))
    world.succeed("a", "text", prompt_ids=[1, 2])
    assert prompt(world, "b") == (Text(text="p"), Text(text="text"), Text(text="more"))


def test_an_immediate_stop_leaves_a_context_of_the_prompt_ids() -> None:
    world = World()
    world.submit(think("a"), think("b", after="a", prompt=""))
    world.succeed("a", "", prompt_ids=[1, 2])
    assert prompt(world, "b") == (Tokens(ids=(1, 2)),)


def test_inside_an_expansion_after_means_what_the_expander_generated_and_outside_its_final_context() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", after="e", prompt="Z"))
    world.succeed("e", "plan", prompt_ids=[1], token_ids=[2])
    world.expand("e", think("t", prompt="thread"), think("u", "t", after="e", prompt="U"))
    world.succeed("e/t", "found", prompt_ids=[50], token_ids=[51])
    assert prompt(world, "e/u") == (Tokens(ids=(1, 2)), Text(text="U"))
    world.succeed("e/u", "end", prompt_ids=[1, 2, 8], token_ids=[9])
    assert prompt(world, "z") == (Tokens(ids=(1, 2, 8, 9)), Text(text="Z"))


def test_the_final_context_is_found_through_nested_expansions() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", after="e", prompt="Z"))
    world.succeed("e", "1", prompt_ids=[1], token_ids=[2])
    world.expand("e", think("f", after="e", expands=True))
    world.succeed("e/f", "2", prompt_ids=[1, 2], token_ids=[3])
    world.expand("e/f", think("g", after="f"), think("h", after="e", prompt="both"), output="g")
    world.succeed("e/f/g", "3", prompt_ids=[1, 2, 3], token_ids=[4])
    assert prompt(world, "z") == (Tokens(ids=(1, 2, 3, 4)), Text(text="Z"))


def test_a_nested_expansion_can_continue_what_an_outer_expander_generated() -> None:
    world = World()
    world.submit(think("e", expands=True))
    world.succeed("e", "1", prompt_ids=[1], token_ids=[2])
    world.expand("e", think("f", expands=True))
    world.succeed("e/f", "2", prompt_ids=[70], token_ids=[71])
    world.expand("e/f", think("h", after="e", prompt="H"))
    assert prompt(world, "e/f/h") == (Tokens(ids=(1, 2)), Text(text="H"))


def test_an_expansion_that_ends_in_no_thought_leaves_the_context_of_the_last_one_that_was() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", after="e", prompt="Z"))
    world.succeed("e", "plan", prompt_ids=[1], token_ids=[2])
    world.expand("e", call("t"), join("j", "t"))
    world.succeed("e/t", 5)
    assert prompt(world, "z") == (Tokens(ids=(1, 2)), Text(text="Z"))


def test_an_expander_that_keeps_its_value_keeps_its_context() -> None:
    world = World()
    world.submit(think("e", expands=True), think("z", after="e", prompt="Z"))
    world.succeed("e", "own", prompt_ids=[1], token_ids=[2])
    world.expand("e", think("aside"), output=None)
    assert prompt(world, "z") == (Tokens(ids=(1, 2)), Text(text="Z"))


def test_a_join_that_expands_into_a_thought_can_be_continued() -> None:
    world = World()
    world.submit(call("a"), join("j", "a", expands=True), think("z", after="j", prompt="Z"))
    world.succeed("a", 1)
    world.expand("j", think("s", prompt=[Text(text="sum up "), Ref(step="a")]))
    assert prompt(world, "j/s") == (Text(text="sum up "), Text(text="1"))
    world.succeed("j/s", "sum", prompt_ids=[5], token_ids=[6])
    assert prompt(world, "z") == (Tokens(ids=(5, 6)), Text(text="Z"))


def test_a_step_of_a_running_expander_waits_for_what_it_continues() -> None:
    world = World()
    world.submit(think("e", expands=True, stream=True))
    world.expand("e", think("t", prompt="T"), think("u", after="e", prompt="U"), output="u", closed=False)
    assert world.running() == ["e", "e/t"]
    world.succeed("e", "all", prompt_ids=[1], token_ids=[2])
    assert prompt(world, "e/u") == (Tokens(ids=(1, 2)), Text(text="U"))


def test_a_value_in_a_prompt_becomes_text_and_is_not_read_again() -> None:
    world = World()
    world.submit(call("x"), think("a", prompt=[Ref(step="x"), Ref(step="x")]))
    world.succeed("x", {"$ref": "a"})
    assert prompt(world, "a") == (Text(text='{"$ref":"a"}'),) * 2


def test_values_in_arguments_keep_their_type_and_are_put_in_once() -> None:
    world = World()
    world.submit(
        call("x"),
        call("y"),
        call(
            "c",
            args={
                "whole": {"$ref": "x"},
                "deep": [{"in": {"$ref": "y"}}],
                "text": {"$text": ["n=", {"$ref": "x"}, " s=", {"$ref": "y"}]},
                "literal": {"$literal": {"$ref": "x"}},
            },
        ),
    )
    world.succeed("x", [1, 2.5])
    world.succeed("y", {"$ref": "x"})
    assert args(world, "c") == {
        "whole": [1, 2.5],
        "deep": [{"in": {"$ref": "x"}}],
        "text": 'n=[1,2.5] s={"$ref":"x"}',
        "literal": {"$ref": "x"},
    }


def test_literals_and_texts_are_read_where_no_reference_stands_beside_them() -> None:
    world = World()
    world.submit(call("c", args={"a": {"$literal": {"$ref": "x"}}, "b": [{"$text": ["n=", 1]}], "c": {"$ref": 5}}))
    assert args(world, "c") == {"a": {"$ref": "x"}, "b": ["n=1"], "c": {"$ref": 5}}


def test_a_name_means_the_step_of_the_nearest_scope() -> None:
    world = World()
    world.submit(call("x"), think("e", "x", expands=True))
    world.succeed("x", "outer")
    world.succeed("e", "plan")
    world.expand("e", think("u", prompt=[Ref(step="x")]), call("x"), output="u")
    world.succeed("e/x", "inner")
    assert prompt(world, "e/u") == (Text(text="inner"),)


@pytest.mark.parametrize(("left", "asked"), [(7, 7), (500, 100)])
def test_a_job_generates_no_more_than_its_budget_has_left(left: int, asked: int) -> None:
    world = World()
    world.submit(think("a", tokens=100), budget=Budget(tokens=left, seconds=30))
    op = world.job("a").op
    assert isinstance(op, ModelCall)
    assert op.sampling.max_tokens == asked
    assert world.job("a").seconds == 30
