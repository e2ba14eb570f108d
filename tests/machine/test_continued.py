"""What a lost attempt had generated is not generated again: ids, text, budgets, usage and the critical path."""

from __future__ import annotations

from plait.core.budget import Budget
from plait.core.events import Dispatch, Expand
from plait.core.ops import ModelCall
from plait.core.plan import Step
from plait.core.planning import derive
from plait.core.request import Retries
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.machine.views import NodeView
from plait.policies.merge.synthesis import Stitch
from plait.policies.merge.votes import Majority
from tests.machine.kit import World, fail_with, join, think


def two_workers(**options) -> World:
    world = World(slots=1, **options)
    world.up("v", 1)
    return world


def generated(world: World, step: str) -> tuple[int, ...]:
    return world.job(step).generated


def test_the_next_attempt_goes_on_from_all_ids_of_a_lost_one() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    world.progress("a", ids=[3])
    lost = world.jobs[world.attempt("a")].worker
    world.down(lost)
    (sent,) = world.said(Dispatch)
    assert isinstance(sent, Dispatch)
    assert sent.worker != lost
    assert sent.job.generated == (1, 2, 3)
    op = sent.job.op
    assert isinstance(op, ModelCall)
    assert op.sampling.max_tokens == 10, "in all, those that are there included"


def test_what_several_lost_attempts_had_adds_up_whichever_way_they_were_lost() -> None:
    world = two_workers(lease=50.0)
    world.submit(think("a", tokens=100))
    world.progress("a", ids=[1])
    world.fail("a", fail_with(lost=True))
    world.progress("a", ids=[2])
    world.stopped("a", tokens=1)
    world.progress("a", ids=[3, 4])
    world.tick(world.now + 60.0)
    assert generated(world, "a") == (1, 2, 3, 4)
    world.succeed("a", "text", token_ids=[1, 2, 3, 4, 5], tokens=1)
    assert world.node("a").outcome.own.usage.completion == 5


def test_tokens_of_a_lost_attempt_that_were_gone_on_from_count_once_and_are_not_cancelled() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10), think("b", after="a", tokens=10))
    world.progress("a", ids=[1, 2, 3])
    world.down(world.jobs[world.attempt("a")].worker)
    world.succeed("a", "text", prompt_ids=[9], token_ids=[1, 2, 3, 4, 5], tokens=2)
    world.succeed("b", tokens=4)
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (9, 0)
    assert world.finish.critical_path_tokens == 9


def test_tokens_of_a_lost_attempt_are_cancelled_when_the_next_one_begins_again() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10))
    world.progress("a", ids=[1, 2, 3])
    world.down(world.jobs[world.attempt("a")].worker)
    world.succeed("a", "text", token_ids=[1, 2, 3, 4, 5], tokens=5)
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (8, 3)
    assert world.finish.critical_path_tokens == 5


def test_a_worker_without_ids_that_begins_again_is_taken_at_its_word() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10, stream=True))
    world.progress("a", "one ", ids=[1])
    world.down(world.jobs[world.attempt("a")].worker)
    world.progress("a", "one ", tokens=1)
    world.progress("a", "two ", tokens=1)
    assert "".join(world.node("a").attempts.live.text) == "one two "
    world.succeed("a", "one two ", tokens=2)
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (3, 1)


def test_ids_that_do_not_account_for_all_tokens_are_not_gone_on_from() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    world.progress("a", tokens=2)
    world.down(world.jobs[world.attempt("a")].worker)
    assert generated(world, "a") == ()


def test_a_failure_of_the_step_itself_begins_again() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10))
    world.progress("a", ids=[1, 2])
    world.fail("a", fail_with(retryable=True))
    world.tick()
    assert generated(world, "a") == ()


def test_a_budget_is_asked_only_for_what_is_left_to_generate() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10), think("b", tokens=3), join("j", "a", "b"), budget=Budget(tokens=20))
    world.progress("a", ids=[1, 2, 3, 4, 5, 6])
    world.down(world.jobs[world.attempt("a")].worker)  # charged 10: 6 told, 6 more, and no more than it might generate
    world.succeed("b", tokens=3)
    op = world.job("a").op
    assert isinstance(op, ModelCall)
    assert op.sampling.max_tokens == 10
    account = world.node("a").account
    assert account is not None
    assert (account.tokens, account.held_back.tokens) == (13, 4)


def test_a_budget_that_is_nearly_used_up_cuts_what_is_new() -> None:
    world = two_workers()
    world.submit(think("a", tokens=10), budget=Budget(tokens=12))
    world.progress("a", ids=[1, 2, 3])
    world.down(world.jobs[world.attempt("a")].worker)
    op = world.job("a").op
    assert isinstance(op, ModelCall)
    assert op.sampling.max_tokens == 3 + 6, "3 were told, and as many again are taken to be lost"
    world.succeed("a", "x", token_ids=[1, 2, 3, 4, 5], tokens=2, finish="length")
    assert world.finish.status == "partial"


def test_an_attempt_lost_after_its_last_token_leaves_nothing_to_generate() -> None:
    world = two_workers()
    world.submit(think("a", tokens=3))
    world.progress("a", ids=[1, 2, 3])
    world.down(world.jobs[world.attempt("a")].worker)
    job = world.job("a")
    assert job.generated == (1, 2, 3)
    assert isinstance(job.op, ModelCall)
    assert job.op.sampling.max_tokens == 3
    world.succeed("a", "abc", token_ids=[1, 2, 3], tokens=0, finish="length")
    assert (world.finish.usage.completion, world.finish.usage.cancelled) == (3, 0)


def sampled(name: str, temperature: float = 1.0, seed: int | None = 7) -> Step:
    return Step(
        name=name, op=ModelCall(prompt="p", sampling=Sampling(max_tokens=100, temperature=temperature, seed=seed))
    )


def seed_of(world: World, step: str) -> int | None:
    op = world.job(step).op
    assert isinstance(op, ModelCall)
    return op.sampling.seed


def lose(world: World, step: str, ids: list[int]) -> None:
    if ids:
        world.progress(step, ids=ids)
    world.fail(step, fail_with(lost=True))


def test_a_sampled_attempt_that_goes_on_has_a_seed_of_its_own_made_of_how_far_the_text_was() -> None:
    world, other = two_workers(), two_workers()
    for each in (world, other):
        each.submit(sampled("a"), retries=Retries(lost=9))
    seeds = [seed_of(world, "a")]
    for ids in ([1, 2], [3], [4, 5, 6]):
        lose(world, "a", ids)
        seeds.append(seed_of(world, "a"))
    assert seeds[0] == 7, "an attempt that begins at the start has the seed of the plan"
    assert len(set(seeds)) == 4
    lose(other, "a", [8, 9, 10])
    assert seed_of(other, "a") == seeds[2], "the seed depends on the plan's and on the number of tokens alone"
    assert seeds[2] == derive(7, "after", 3), "and is the same in every process"


def test_a_sampled_attempt_that_was_lost_before_its_first_token_begins_with_its_own_seed() -> None:
    world = two_workers()
    world.submit(sampled("a"))
    lose(world, "a", [])
    assert (generated(world, "a"), seed_of(world, "a")) == ((), 7)


def test_a_greedy_attempt_and_one_without_a_seed_keep_what_they_have() -> None:
    world = two_workers()
    world.submit(sampled("a", temperature=0.0), sampled("b", seed=None), join("j", "a", "b"))
    for step, seed in (("a", 7), ("b", None)):
        lose(world, step, [1, 2])
        assert (generated(world, step), seed_of(world, step)) == ((1, 2), seed)


def test_the_reader_of_the_new_attempt_gets_the_earlier_text_first() -> None:
    world = World(slots=2)
    world.up("v", 2)
    world.submit(think("e", tokens=10, stream=True, expands=True))
    world.progress("e", "one ", ids=[1])
    world.progress("e", "two ", ids=[2])
    first = world.node("e").attempts.generation
    world.expand("e", think("x"), closed=False, output=None)
    world.down(world.jobs[world.attempt("e")].worker)
    assert world.state("e/x") == "cancelled", "patches to the lost attempt are void"
    world.progress("e", "three", ids=[3])
    (fed,) = world.said(Expand)
    assert isinstance(fed, Expand)
    assert (fed.delta, fed.attempt > first) == ("one two three", True)
    world.progress("e", "!", ids=[4])
    (fed,) = world.said(Expand)
    assert isinstance(fed, Expand)
    assert fed.delta == "!"


def test_a_new_engine_that_has_nothing_to_add_still_closes_the_reader_with_all_of_the_text() -> None:
    world = two_workers()
    world.submit(think("e", tokens=10, stream=True, expands=True))
    world.progress("e", "all", ids=[1])
    world.down(world.jobs[world.attempt("e")].worker)
    world.succeed("e", "all", token_ids=[1], tokens=0)
    (fed,) = world.said(Expand)
    assert isinstance(fed, Expand)
    assert fed.result is not None
    assert (fed.result.text, fed.result.usage.completion) == ("all", 1)


# -- the line: what stands since the model's first token ---------------------------------------------------------------


def test_a_continued_step_knows_its_line_and_keeps_its_own_text_as_its_value() -> None:
    world = World()
    world.submit(think("a"), think("b", prompt=" so", after="a"), think("c", prompt="", after="b"))
    world.succeed("a", "the answer: forty-", prompt_ids=[1], token_ids=[2])
    world.succeed("b", " two", prompt_ids=[1, 2, 3], token_ids=[4])
    world.progress("c", " thou")
    assert NodeView(world.node("c")).line == "the answer: forty- so two thou", "while it is written, too"
    world.succeed("c", " thousand")
    result = world.finish.result
    assert result.value == " thousand"
    assert result.line == "the answer: forty- so two thousand"


def test_what_is_left_out_of_the_context_is_left_out_of_the_line() -> None:
    world = World()
    back = ModelCall(prompt="<right>", after="a", before="<wrong>")
    world.submit(think("a"), Step(name="b", op=back))
    world.succeed("a", "so <wrong> and on")
    world.succeed("b", " it is")
    assert world.finish.result.line == "so <right> it is"


def test_a_vote_reads_answers_that_begin_before_the_cut() -> None:
    world = World(merges={"majority": Majority()})
    heads = [think("a1"), think("a2"), think("a3")]
    tails = [think(f"b{i}", prompt="", after=f"a{i}") for i in (1, 2, 3)]
    world.submit(*heads, *tails, join("vote", "b1", "b2", "b3", merge="majority"))
    for name, text in (("a1", "answer: forty-"), ("a2", "answer: forty-"), ("a3", "answer: fifty-")):
        world.succeed(name, text)
    for name in ("b1", "b2", "b3"):
        world.succeed(name, "one")
    assert world.finish.result.value == "answer: forty-one", "the kit's task takes the whole text for the answer"


def test_a_join_that_passes_one_value_on_passes_its_line_on() -> None:
    world = World(merges={"stitch": Stitch()})
    world.submit(think("a"), think("b", prompt="", after="a"), join("end", "b", merge="stitch"))
    world.succeed("a", "answer: forty-")
    world.succeed("b", "two")
    assert (world.finish.result.value, world.finish.result.line) == ("two", "answer: forty-two")


def test_the_line_is_not_written_down() -> None:
    result = Result(value="two", prior="answer: forty-")
    assert "forty" not in result.model_dump_json(), "a replay makes it again, and chains would grow with their square"


def test_a_join_reads_a_branch_that_was_to_go_on_from_a_step_that_failed() -> None:
    world = World()
    world.submit(think("e", expands=True), think("x"), join("j", "e", "x", best_effort=True))
    world.succeed("e", "a plan")
    world.expand("e", think("g"), think("f", after="g"))
    world.fail("e/g", fail_with())
    assert world.state("e") == "failed"
    world.succeed("x", "x")
    assert world.finish.result is not None
    assert world.finish.result.value == ["x"]
