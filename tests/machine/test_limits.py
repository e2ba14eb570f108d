"""Limits besides the generated tokens, and tokens that are counted while they are generated."""

from __future__ import annotations

import pytest

from plait.core.budget import Budget
from plait.core.errors import FieldError
from plait.core.events import Count, Counted, Stopped, Submitted, WorkerUp
from plait.core.ops import Function, ModelCall, Plugin, Ref
from plait.core.plan import Step
from plait.core.request import Request
from plait.core.result import Price, Result, Usage
from tests.machine.kit import World, call, join, plan, think


def reporting(slots: int = 8, *, counts: bool = False, prices: dict[str, Price] | None = None) -> World:
    """A world whose worker reports what it generates."""
    world = World(slots=0)
    up = WorkerUp(at=0.0, worker="w", slots=slots, serves=("think", "call"), reports=16, counts_tokens=counts)
    up.prices = prices or {}
    world.send(up)
    return world


def message(world: World) -> str:
    failure = world.finish.failure
    assert failure is not None
    return f"{failure.kind}: {failure.message}"


def eight(tokens: int = 512) -> list[Step]:
    names = [f"s{i}" for i in range(8)]
    return [*(think(name, tokens=tokens) for name in names), join("j", *names, best_effort=True)]


def halt(world: World, step: str, tokens: int, value: str = "so far") -> None:
    """The worker has stopped an attempt, as it was asked to."""
    attempt = world.attempt(step)
    world._answered(attempt)
    world.send(
        Stopped(
            at=world.now,
            attempt=attempt,
            result=Result(value=value, finish="cancelled", usage=Usage(completion=tokens)),
        )
    )


# -- tokens, counted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [4200, 1100, 600, 300, 136])
def test_a_budget_does_not_serialise_what_fits_into_it(tokens: int) -> None:
    world = reporting()
    world.submit(*eight(), budget=Budget(tokens=tokens))
    assert len(world.running()) == 8
    assert all(world.job(f"s{i}").report for i in range(8))
    for i in range(8):
        world.progress(f"s{i}", tokens=17)
        world.succeed(f"s{i}", tokens=17)
    assert (world.finish.status, world.finish.usage.completion) == ("done", 136)


def test_what_is_left_is_counted_and_all_that_runs_is_cut_when_nothing_is() -> None:
    world = reporting()
    world.submit(*eight(), budget=Budget(tokens=300))
    for i in range(7):
        world.progress(f"s{i}", "x", 40)
    assert not world.stopping
    world.progress("s7", "x", 30)
    assert len(world.stopping) == 8
    for i in range(8):
        halt(world, f"s{i}", 40 + (i == 0))
    assert world.finish.status == "partial" and world.finish.usage.completion == 321
    assert message(world) == "BudgetExceeded: run r: all 300 tokens are used up; raise `tokens`"
    assert world.finish.result is not None and world.finish.result.value == ["so far"] * 8
    assert world.finish.usage.cancelled == 0, "what was cut is read"


def test_one_that_ends_before_the_order_to_stop_arrives_is_whole() -> None:
    world = reporting()
    world.submit(think("a", tokens=50), think("b", tokens=50), join("j", "a", "b"), budget=Budget(tokens=60))
    world.progress("a", tokens=30)
    world.progress("b", tokens=30)
    assert len(world.stopping) == 2
    world.succeed("a", "whole", tokens=31)
    halt(world, "b", 30, "part")
    assert world.finish.result is not None and world.finish.result.value == ["whole", "part"]
    assert world.finish.status == "partial"


def test_a_cut_attempt_that_has_nothing_or_never_answers_fails_with_the_limit() -> None:
    world = reporting()
    world.submit(
        think("a"), think("b"), think("c"), join("j", "a", "b", "c", best_effort=True), budget=Budget(tokens=60)
    )
    world.progress("a", tokens=30)
    world.progress("c", tokens=30)
    halt(world, "b", 0, "")
    world.tick()
    assert world.states("a", "b", "c") == ["failed", "failed", "failed"]
    assert "all 60 tokens are used up" in str(world.node("a").outcome.failure)


def test_strict_reserves_all_and_nothing_passes_it() -> None:
    world = reporting()
    world.submit(*eight(tokens=50), budget=Budget(tokens=120, strict=True))
    assert world.running() == ["s0", "s1"]
    world.progress("s0", tokens=50)
    world.succeed("s0", tokens=50, finish="length")
    world.succeed("s1", tokens=20)
    assert world.running() == ["s2"] and world.job("s2").op.sampling.max_tokens == 50


def test_what_attempts_usually_need_is_learnt_and_held_for_the_next() -> None:
    world = reporting(slots=2)
    world.submit(*eight(tokens=512), budget=Budget(tokens=900))
    for i in (0, 1):
        world.progress(f"s{i}", tokens=300)
        world.succeed(f"s{i}", tokens=300)
    assert world.running() == ["s2"], "300 are left, and as many is what one needs"
    world.progress("s2", tokens=100)
    world.succeed("s2", tokens=100)
    assert world.running() == ["s3"]


def test_budgets_nest_and_the_inner_one_cuts_alone() -> None:
    world = reporting()
    inner = think("e", expands=True, budget=Budget(tokens=100))
    world.submit(inner, think("b"), join("j", "e", "b"), budget=Budget(tokens=1000))
    world.progress("e", "x", 40)
    world.succeed("e", tokens=40)
    world.expand("e", think("a"), think("c"), join("k", "a", "c"))
    world.progress("e/a", tokens=35)
    world.progress("e/c", tokens=25)
    assert sorted(world.machine.attempts[n].node.step.name for n in world.stopping) == ["a", "c"]
    assert world.state("b") == "running"
    halt(world, "e/a", 35)
    halt(world, "e/c", 25)
    world.succeed("b", "b", tokens=5)
    assert world.finish.status == "partial"
    assert message(world) == "BudgetExceeded: r:e: all 100 tokens are used up; raise `tokens`"


# -- prompts and cost --------------------------------------------------------------------------------------------------


def test_a_prompt_is_counted_before_its_step_is_sent_and_once_for_all_that_share_it() -> None:
    world = reporting(counts=True)
    actions = world.submit(*eight(), budget=Budget(prompt_tokens=250))
    assert not world.running()
    asked = [each for each in actions if isinstance(each, Count)]
    assert asked and isinstance(asked[0].op, ModelCall)
    for each in asked:
        world.send(Counted(at=0.0, step=each.step, tokens=100))
    assert world.running() == ["s0", "s1"]
    assert "a prompt of 100 tokens does not fit into the 50 that are left of 250" in str(
        world.node("s2").outcome.failure
    )


def test_a_worker_that_cannot_tell_leaves_an_estimate_which_is_called_one() -> None:
    world = reporting(counts=True)
    world.submit(think("a", prompt="x" * 400), budget=Budget(total_tokens=100))
    world.send(Counted(at=0.0, step="r:a"))
    assert message(world) == (
        "BudgetExceeded: run r: a prompt of up to 150 tokens and an answer do not fit into the 100 that are left of "
        "100; raise `total_tokens`"
    )


def through(world: World, names: list[str], prompt: int, tokens: int, **more: int) -> int:
    """Let steps run as they may start, each with so many tokens; return what all that were sent came to."""
    sent, before = 0, -1
    while before != sent:
        before = sent
        for name in names:
            if world.state(name) == "running":
                world.progress(name, tokens=tokens)
                world.succeed(name, usage=Usage(prompt=prompt, completion=tokens, **more))
                sent += prompt + tokens
    return sent


@pytest.mark.parametrize(("real", "strict"), [(100, False), (145, False), (100, True), (145, True), (300, True)])
def test_prompts_that_come_to_more_than_estimated_pass_no_limit(real: int, strict: bool) -> None:
    """Four of 400 bytes that differ, which are taken for 100 tokens; with `strict` even at most a byte a token."""
    names = [f"s{i}" for i in range(4)]
    steps = [think(name, prompt=name + "x" * 400, tokens=20) for name in names]
    world = reporting()
    world.submit(*steps, join("j", *names, best_effort=True), budget=Budget(total_tokens=600, strict=strict))
    assert 0 < through(world, names, real, 20) <= 600


def test_a_prompt_that_nobody_tells_stays_charged_with_what_it_may_have_been() -> None:
    world = reporting()
    steps = [think("a", prompt="a" * 400), think("b", prompt="b" * 400), join("j", "a", "b", best_effort=True)]
    world.submit(*steps, budget=Budget(prompt_tokens=400))
    world.succeed("a", usage=Usage(prompt=90, completion=5, uncounted_prompt=310))
    account = world.node("b").account
    assert account is not None and (account.prompt, account.held_back.margin) == (100 + 50 + 100, 50)


def test_tools_that_a_model_is_told_of_are_in_the_estimate() -> None:
    tool = Function(name="look", description="y" * 4000)
    op = ModelCall.model_validate({"prompt": ("x" * 40,), "chat": True, "tools": (tool,)})
    world = reporting()
    world.submit(Step(name="a", op=op), budget=Budget(total_tokens=900))
    assert "do not fit" in message(world) and not world.running()


def test_a_step_that_is_given_up_while_it_is_counted_starts_nothing() -> None:
    from plait.core.events import Pruned

    world = reporting(counts=True)
    world.submit(think("a"), think("b"), join("j", "a", "b", best_effort=True), budget=Budget(prompt_tokens=9))
    world.send(Pruned(at=0.0, step="r:a"))
    world.send(Counted(at=0.0, step="r:a", tokens=3))
    world.send(Counted(at=0.0, step="r:b", tokens=3))
    assert world.states("a", "b") == ["cancelled", "running"]
    late = world.machine.late
    world.send(Counted(at=0.0, step="r:b", tokens=3))
    assert world.machine.late == late + 1


def test_a_cost_is_reserved_counted_and_cut_on() -> None:
    world = reporting(prices={"": Price(input=10_000.0, output=20_000.0)})
    world.submit(think("a", prompt="x" * 40), think("b", "a", prompt="x" * 40), budget=Budget(cost=1.0))
    world.progress("a", tokens=20)  # 0.1 for the prompt and 0.4
    world.succeed("a", usage=Usage(prompt=10, completion=20))
    account = world.node("b").account
    assert account is not None and account.cost == pytest.approx(0.6)
    assert world.job("b").op.sampling.max_tokens == 20, "what 0.4 pays for"


# -- steps, depth, turns -----------------------------------------------------------------------------------------------


def test_an_expansion_that_is_too_deep_is_refused_before_it_happens() -> None:
    world = World()
    world.submit(think("e", expands=True), budget=Budget(depth=1))
    world.succeed("e")
    world.expand("e", think("f", expands=True))
    world.succeed("e/f")
    world.expand("e/f", call("a"))
    assert message(world) == ("BudgetExceeded: run r: an expansion of depth 2 exceeds a limit of 1; raise `depth`")
    assert "r:e/f/a" not in world.machine.nodes


def test_a_chain_of_more_turns_is_refused_whole() -> None:
    world = World()
    world.submit(think("a"), call("b", "a"), think("c", after="a"), think("d", "c", "b"), budget=Budget(turns=2))
    assert message(world) == "BudgetExceeded: run r: r:d would be turn 3 of at most 2; raise `turns`"


def test_turns_go_on_through_expansions_and_branches_count_by_themselves() -> None:
    world = World(slots=9)
    wide = [think(f"w{i}") for i in range(5)]
    world.submit(think("e", expands=True), think("z", "e"), *wide, join("j", "z", *(s.name for s in wide)),
                 budget=Budget(turns=3))  # fmt: skip
    world.succeed("e")
    world.expand("e", think("f", after="e"), think("g", after="f"))
    for step in ("e/f", "e/g", *(s.name for s in wide)):
        world.succeed(step)
    assert world.state("z") == "failed" and "r:z would be turn 4" in str(world.node("z").outcome.failure)


def test_a_scopes_turns_begin_with_it() -> None:
    world = World()
    world.submit(think("a"), think("b", after="a", expands=True, budget=Budget(turns=2)))
    world.succeed("a")
    world.succeed("b")
    world.expand("b", think("c", after="b"))
    assert world.state("b/c") == "running"


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": -1}, {"tokens": True}, {"tokens": 1.5}, {"cost": float("nan")}, {"seconds": float("inf")}, {"width": 0},
     {"depth": "deep"}, {"turns": []}, {"tokns": 4}, {"strict": 7}, {"total_tokens": -(10**30)}],
)  # fmt: skip
def test_a_limit_that_makes_no_sense_is_refused_in_words(wrong: dict[str, object]) -> None:
    with pytest.raises(FieldError, match=next(iter(wrong))):
        Budget(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["tokens", "tokens=5,tokens=6", "tokens=x", "speed=4"])
def test_a_budget_in_words_that_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(FieldError):
        Budget.of(words)
    assert Budget.of("tokens=5 width=2,strict=true") == Budget(tokens=5, width=2, strict=True)


def test_a_value_that_is_put_into_a_prompt_often_counts_as_often() -> None:
    for times, status in ((2, "running"), (50, "failed")):
        world = World()
        refs = [Ref(step="a")] * times
        request = Request(text="", planner=Plugin(name="sample"), value_bytes=50_000)
        world.requests["r"] = request
        world.send(Submitted(at=0.0, run="r", request=request, plan=plan(call("a"), think("b", prompt=refs))))
        world.succeed("a", "x" * 2_000)
        assert ("failed" if "r" in world.finishes else "running") == status
