"""A budget of thoughts: reserved whole, given back, and calls without thoughts when it is used up."""

from __future__ import annotations

from typing import Any

import pytest

from plait.core.budget import Budget
from plait.core.ops import ModelCall
from plait.core.plan import Step
from plait.core.result import Usage
from plait.core.sampling import THOUGHTS, Sampling
from tests.machine.kit import World, join


def thinks(*names: str, tokens: int = 50, **fields: Any) -> list[Step]:
    op = ModelCall(prompt="q", sampling=Sampling(max_tokens=tokens, **fields))
    return [Step(name=name, op=op) for name in names]


def asked(world: World, step: str) -> tuple[int, int | None, str]:
    op = world.job(step).op
    assert isinstance(op, ModelCall)
    return op.sampling.max_tokens, op.sampling.thinking_tokens, op.sampling.thinking


def ends(world: World, step: str, thoughts: int, words: int = 10) -> None:
    world.succeed(step, usage=Usage(prompt=1, completion=thoughts + words, thoughts=thoughts))


def test_thoughts_are_reserved_and_given_back() -> None:
    world = World()
    steps = thinks("a", "b", "c", thinking_tokens=100)
    world.submit(*steps, join("j", "a", "b", "c"), budget=Budget(thinking_tokens=210))
    assert world.running() == ["a", "b"] and asked(world, "a") == (50, 100, "auto")
    ends(world, "a", thoughts=20)
    assert world.state("c") == "ready", "90 of 210 are left, and b may still give some of its 100 back"
    ends(world, "b", thoughts=100)
    assert asked(world, "c") == (50, 90, "auto")


def test_when_they_are_used_up_calls_are_asked_for_without() -> None:
    world = World()
    world.submit(*thinks("a"), *thinks("b"), join("j", "a", "b"), budget=Budget(thinking_tokens=100, width=1))
    assert asked(world, "a") == (50, 100, "auto")
    ends(world, "a", thoughts=100)
    assert asked(world, "b") == (50, 0, "off")


@pytest.mark.parametrize("fields", [{"thinking": "off"}, {"tokens": 1, "labels": ("0", "1")}])
def test_a_call_that_shall_not_think_takes_none_of_them(fields: dict[str, Any]) -> None:
    world = World()
    labels, tokens = fields.pop("labels", ()), fields.pop("tokens", 50)
    op = ModelCall(prompt="q", sampling=Sampling(max_tokens=tokens, labels=labels), **fields)
    first, last = Step(name="a", op=op), thinks("b")[0]
    world.submit(first, last, join("j", "a", "b"), budget=Budget(thinking_tokens=100))
    assert world.running() == ["a", "b"] and asked(world, "b") == (50, 100, "auto")


def test_a_limit_of_tokens_covers_the_thoughts_of_a_model_that_is_known_to_think() -> None:
    world = World()
    world.submit(*thinks("a", "b", "c"), join("j", "a", "b", "c"), budget=Budget(tokens=400, width=1))
    assert asked(world, "a") == (50, None, "auto"), "nobody knows yet that it thinks"
    ends(world, "a", thoughts=90)
    assert asked(world, "b") == (50, 250, "auto"), "what is short is taken from the thoughts"
    ends(world, "b", thoughts=250)
    assert asked(world, "c") == (40, 0, "off"), "words go first"


def test_a_call_that_has_to_think_reserves_its_thoughts_from_the_beginning() -> None:
    world = World()
    world.submit(*thinks("a", thinking="on"), output="a", budget=Budget(tokens=20_000, strict=True))
    assert asked(world, "a") == (50, None, "on")
    account = world.node("a").account
    assert account is not None and account.held_back.tokens == 50 + THOUGHTS


def test_what_a_lost_attempt_may_have_thought_is_charged() -> None:
    world = World()
    world.submit(*thinks("a"), output="a", budget=Budget(thinking_tokens=100))
    world.down(returning=True)
    world.up()
    assert asked(world, "a") == (50, 0, "off")


def test_a_limit_that_is_set_while_it_runs_counts_what_was_thought() -> None:
    world = World()
    world.submit(*thinks("a", "b", thinking_tokens=100), join("j", "a", "b"), budget=Budget(width=1))
    world.limit(width=1, thinking_tokens=130)
    ends(world, "a", thoughts=80)
    assert asked(world, "b") == (50, 50, "auto")
