"""The allocation `by-saturation`, alone and under the planner `adaptive`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, strategies as st

from plait import AsyncOrchestrator
from plait.core.budget import Budget
from plait.core.call_config import CallConfig
from plait.core.events import Job
from plait.core.interfaces import Planner
from plait.core.ops import ModelCall, Plugin
from plait.core.request import Request
from plait.core.result import Failure
from plait.core.states import State
from plait.planners.votes.sample import Adaptive
from plait.policies.allocate.by_saturation import BySaturation
from plait.policies.merge.votes import Majority
from plait.workers.scripted import Reply, Scripted
from tests.planners.driving import Outcome, drive
from tests.policies.branches import LETTERS, branches, ended, voter


@given(
    st.lists(st.sampled_from(["A", "B", "c", "7", "?"]), min_size=1, max_size=5),
    st.integers(1, 40),
    st.sampled_from([0.01, 0.1]),
)
def test_it_is_n_star_capped(answers: list[str], most: int, epsilon: float) -> None:
    probes = branches(*answers)
    for evidence in ("share", "verifier"):
        rule = BySaturation.model_validate({"max_branches": most, "epsilon": epsilon, "evidence": evidence})
        if evidence == "verifier":
            good = sum(each in "AB" for each in answers)
            bad = sum(each in "c?" for each in answers)
        else:
            good = max((answers.count(each) for each in answers if each != "?"), default=0)
            bad = len(answers) - good
        p = (1 + good) / (2 + good + bad)
        n_star = 0
        while p * (1 - p) ** n_star > epsilon * (1 + 1e-12):
            n_star += 1
        expected = min(max(0, n_star - len(answers)), max(0, most - len(answers)))
        assert len(rule.allocate(probes, LETTERS).branches) == expected


def test_it_says_why() -> None:
    assert BySaturation(max_branches=8).allocate(branches("a", "a", "A"), LETTERS).why == (
        "1 of 3 probes verified, p = 0.4: 8 branches saturate, 5 more"
    )
    assert BySaturation(max_branches=4).allocate(branches("7", "8", "?"), LETTERS).why == (
        "1 of 3 probes agree, p = 0.4: 4 branches are needed for a clear lead, 1 more"
    )


def test_a_split_of_answers_that_nobody_judges_wants_more_branches() -> None:
    """By the model of coverage a 4 to 4 split is saturated, and the vote a coin."""
    split = branches(*"77778888")
    assert len(BySaturation(max_branches=32).allocate(split, LETTERS).branches) == 24
    assert len(BySaturation(max_branches=32, evidence="share").allocate(split, LETTERS).branches) < 4
    assert len(BySaturation(max_branches=32).allocate(branches(*"7777"), LETTERS).branches) == 0


@pytest.mark.parametrize(("tokens", "more"), [(None, 29), (1000, 7), (300, 0), (399, 0), (400, 1), (0, 0)])
def test_tokens_cap_it(tokens: int | None, more: int) -> None:
    probes = [voter(f"b{i}", "a", tokens=100) for i in range(3)]
    rule = BySaturation(max_branches=100, most_tokens=tokens, epsilon=1e-5, evidence="verifier")
    expected = math.ceil(math.log(1e-5 / 0.2) / math.log(0.8)) - 3 if tokens is None else more
    assert len(rule.allocate(probes, LETTERS).branches) == expected


def test_temperatures_and_wordings_in_turn() -> None:
    rule = BySaturation(temperatures=(0.5, 1.0), wordings=("a", "b", "c"))
    hard = rule.allocate([*branches("a", "a", "a"), ended("b4", State.FAILED)], LETTERS)
    assert [share.temperature for share in hard.branches[:3]] == [0.5, 1.0, 0.5]
    assert "".join(share.strategy for share in hard.branches[:4]) == "abca"


def test_a_vote_asks_for_a_lead_though_a_verifier_could_judge_the_probes() -> None:
    """The model of coverage needs one right branch in all; a vote needs more of them than of any other answer."""
    probes = branches("a", "B", "c")
    assert "verified" in BySaturation().allocate(probes, LETTERS).why
    assert "agree" in BySaturation(vote=True).allocate(probes, LETTERS).why
    assert len(BySaturation(vote=True).allocate(probes, LETTERS).branches) == 29


def test_it_is_asked_again_until_the_lead_is_clear() -> None:
    rule = BySaturation(vote=True, confidence=0.8)
    first = rule.allocate(branches(*"77"), LETTERS)
    assert (len(first.branches), first.again) == (0, False)
    more = rule.allocate(branches(*"778"), LETTERS)
    assert more.again and 0 < len(more.branches) < 29
    assert rule.allocate(branches(*"7788"), LETTERS).again
    assert not rule.allocate(branches(*"7788" * 8), LETTERS).again, "no more are allowed"
    assert not BySaturation().allocate(branches("a", "B", "c"), LETTERS).again


def test_by_default_it_comes_to_the_verdict_of_all_samples_where_voters_err() -> None:
    """Drawn voters of several skills, whose wrong answers repeat; the study `erring-votes` has a model's."""
    rng = Random(5)
    lost: dict[tuple[float, float], int] = {}
    saved: dict[float, float] = {}
    for skill, second in ((0.3, 0.2), (0.44, 0.26), (0.6, 0.2), (0.6, 0.35), (0.9, 0.0)):
        lost[skill, second], spent = 0, 0
        for _ in range(150):
            said = [rng.choices("7890A", [skill, second, 0.05, 0.05, 0.9 - skill - second])[0] for _ in range(32)]
            answer = Majority().merge(branches(*said), LETTERS).value
            used = rule_until_done(said)
            spent += used
            verdict = Majority().merge(branches(*said[:used]), LETTERS).value
            lost[skill, second] += (answer == "7") - (verdict == "7")
        saved[skill] = 1 - spent / (150 * 32)
    assert sum(lost.values()) <= 5 * 150 / 100 and max(lost.values()) <= 3, f"of 150 verdicts: {lost}"
    assert saved[0.9] > 0.6 and saved[0.3] < 0.2, saved


def rule_until_done(said: Sequence[str]) -> int:
    planner = Adaptive()
    rule = BySaturation.model_validate({"max_branches": planner.max_branches, "vote": True, **planner.allocate.options})
    used = planner.n
    for _ in range(planner.rounds):
        allocation = rule.allocate(branches(*said[:used]), LETTERS)
        used += len(allocation.branches)
        if not allocation.again:
            break
    return used


# --- the planner ------------------------------------------------------------------------------------------------------


def solve(planner: Planner, answers: Sequence[str], **request: object) -> Outcome:
    def model(prompt: list[str], job: Job) -> str | Failure:
        said = answers[int(job.step.rpartition("-")[2]) - 1]
        return Failure(kind="WorkerError", message="no") if said == "fail" else said

    return drive(planner, Request.model_validate({"text": "q", **request}), model)


def test_what_the_probes_agree_on_needs_no_more() -> None:
    outcome = solve(Adaptive(), ["x"] * 40)
    assert len(outcome.contexts) == 4 and outcome.finish.result is not None
    assert outcome.finish.result.value == "x" and outcome.finish.result.why == "4 of 4 votes, margin 4"


def test_what_they_do_not_agree_on_needs_more_and_all_vote() -> None:
    outcome = solve(Adaptive(max_branches=9), ["x", "y", "fail", *"zzzzzzzz"])
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.why == "6 of 8 votes, margin 5; not counted: sample-3 failed"
    assert len(outcome.prompts) == 9, "a tie asks for all that is allowed"


def test_it_asks_again_when_more_have_ended() -> None:
    steps = ["x", "x", "x", "x", "y", *"yyxxxx", *"x" * 30]
    lengths = [len(solve(Adaptive(n=5, rounds=rounds), steps).prompts) for rounds in (1, 2, 8)]
    assert 5 < lengths[0] < lengths[1] <= lengths[2] < 32, lengths


@pytest.mark.parametrize(("merge", "samples"), [("majority", 32), ("best-of", 9)])
async def test_what_the_merge_needs_is_drawn(merge: str, samples: int) -> None:
    worker = Scripted([Reply(text=f"answer: {n}", times=1) for n in (1, 2, 3)] + [Reply(text="answer: 4")])
    async with AsyncOrchestrator(workers=[worker], journal="off") as plait:
        planner = Adaptive(merge=Plugin(name=merge), rounds=1)
        answer = await plait.run("2 + 2?", planner=planner, verify=lambda answer: answer == "4")
    rows = [row for row in answer.trace if row.name.startswith("sample")]
    assert len(rows) == samples and answer.answer == "4"


def test_probes_that_all_fail_are_followed_by_more() -> None:
    outcome = solve(Adaptive(max_branches=9), ["fail"] * 3 + ["x"] * 9)
    assert outcome.finish.status == "done" and outcome.finish.result is not None
    assert outcome.finish.result.value == "x"


def test_no_more_than_most_even_of_probes() -> None:
    assert len(solve(Adaptive(max_branches=2), ["x", "y", "z"]).contexts) == 2


def test_the_budget_of_the_run_is_passed_on() -> None:
    outcome = solve(
        Adaptive(answer=CallConfig(max_tokens=2)), ["x x", "y y", "z z", *["w w"] * 40], budget=Budget(tokens=10)
    )
    assert outcome.finish.status == "done" and outcome.finish.usage.completion == 10


def test_each_branch_is_planned_as_it_was_allocated() -> None:
    ops: dict[str, ModelCall] = {}

    def model(prompt: list[str], job: Job) -> str:
        assert isinstance(job.op, ModelCall)
        ops[job.step.rpartition("/")[2]] = job.op
        return "x"

    shares = BySaturation(temperatures=(0.3, 0.0), wordings=("Work backwards.",))
    spec = Plugin.of(shares)
    outcome = drive(
        Adaptive(answer=CallConfig(temperature=0.9), n=1, max_branches=3, allocate=spec), Request(text="q"), model
    )
    assert outcome.finish.status == "done"
    assert list(ops) == ["sample-1", "sample-2", "sample-3"]
    first, second, third = ops.values()
    assert [op.sampling.temperature for op in (first, second, third)] == [0.9, 0.3, 0.0]
    assert len(first.prompt) == 1 and len(second.prompt) == 2
    assert first.sampling.seed != second.sampling.seed and third.sampling.seed is None


def test_by_arithmetic_sampling_the_probes_and_each_round_are_spread_among_all_before() -> None:
    codes: dict[int, float | None] = {}

    def model(prompt: list[str], job: Job) -> str:
        assert isinstance(job.op, ModelCall)
        codes[int(job.step.rpartition("-")[2])] = job.op.sampling.arithmetic
        return f"{len(codes) % 5}"

    planner = Adaptive(n=4, max_branches=16, arithmetic=True)
    assert drive(planner, Request(text="q", seed=5), model).finish.status == "done"
    assert len(codes) == 16
    found = [codes[i] for i in sorted(codes)]
    for count in (4, 8, 16):
        spread = sorted(code for code in found[:count] if code is not None)
        gaps = {round(after - before, 6) for before, after in zip(spread, [*spread[1:], spread[0] + 1], strict=True)}
        assert gaps == {1 / count}, "evenly spread, whatever the round"
    codes.clear()
    drive(planner.model_copy(update={"answer": CallConfig(temperature=0.0)}), Request(text="q"), model)
    assert set(codes.values()) == {None}, "greedy samples have no use for codes"


@pytest.mark.parametrize(
    ("allocate", "said"), [("by-saturation:colour=1", "no option 'colour'"), ("majority", "no option 'max_branches'")]
)
def test_an_allocation_that_makes_no_sense(allocate: str, said: str) -> None:
    outcome = solve(Adaptive(allocate=Plugin.of(allocate)), ["x"] * 9)
    assert outcome.finish.status == "failed" and outcome.finish.failure is not None
    assert said in outcome.finish.failure.message
