"""Planner `scale`: which outline, which effort, what runs beside what, and what noise in the difficulties costs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.workers.scripted import Reply
from plait_research.planners.scale import Scale, StepCounts, isotonic
from tests.planners.scripted_runs import ask, labels
from tests.planners.two_models import Models, ran

OUTLINE = (
    "1. [difficulty 1; needs none] sort\n2. [difficulty 5; needs none] prove\n3. [difficulty 2; needs 1, 2] join\n"
)
MARK = "How difficult"
KNOWN: list[Any] = [[0.1, 1.0]] * 60 + [[0.9, 0.0]] * 60


def replies(*marks: Reply) -> list[Reply]:
    return [
        *marks,
        Reply(when="Answer the question now", text="Answer: 7"),
        Reply(when="Do this step only", text="a result"),
        Reply(when="Do not answer yet", text=OUTLINE),
    ]


def mark(step: str, digit: str) -> Reply:
    return Reply(when=f"(?s)only, and write its result: {step}.*{MARK}", labels={digit: 0.98, "5": 0.02})


async def scaled(options: dict[str, Any], *marks: Reply) -> tuple[Any, Any]:
    return await ask("scale", "Why?", *replies(*marks), options={"n": 1, **options})


async def test_easy_steps_are_answered_at_once_and_hard_ones_are_thought_through() -> None:
    answer, worker = await scaled({"records": KNOWN}, mark("sort", "0"), mark("prove", "9"), mark("join", "1"))
    assert answer.answer == "7" and "3 steps: 2 easy, 1 hard" in answer.why
    begun = [op.begin for op in worker.ops.values() if "Do this step" in op.prompt[-1].text and not op.sampling.labels]
    assert sum(map(bool, begun)) == 2 and len(begun) == 3
    said = " ".join(labels(answer).values())
    assert ("sort (easy, 0.0" in said and "prove (hard, 1.00)" in said) or "prove (hard, 0.99)" in said


async def test_with_few_records_nothing_is_easy_and_nobody_is_asked() -> None:
    answer, worker = await scaled({"records": KNOWN[:99]}, mark("sort", "0"))
    assert "0 easy, 3 hard (too few records" in answer.why and not worker.asked(MARK)


async def test_a_mark_that_cannot_be_had_is_the_outlines() -> None:
    answer, _ = await scaled({"records": KNOWN}, Reply(when=MARK, finish="error"))
    assert answer.answer == "7" and "2 easy, 1 hard" in answer.why, "difficulty 5 of 5 is hard"


async def test_a_step_reads_what_it_needs_and_waits_for_nothing_else() -> None:
    _, worker = await scaled({})
    (join,) = [prompt for prompt in worker.asked("write its result: join") if MARK not in prompt]
    (sort,) = worker.asked("write its result: sort")
    assert "Done: sort" in join and "Done: prove" in join and "Done" not in sort
    first = [i for i, prompt in enumerate(worker.prompts) if "Do this step only" in prompt][:2]
    assert first == [1, 2], "sort and prove go out together"


async def test_the_model_picks_the_outline() -> None:
    other = "1. [difficulty 1; needs none] guess\n2. [difficulty 1; needs 1] hope\n"
    pick = Reply(when="Which of these plans", labels={"1": 0.2, "2": 0.8})
    first = Reply(when="Do not answer yet", text=OUTLINE, times=1)
    second = Reply(when="Do not answer yet", text=other)
    answer, worker = await ask("scale", "Why?", pick, first, second, *replies(), options={"n": 3})
    assert answer.status == "done" and len(worker.asked("Which of these plans")) == 1
    plans = worker.asked("Which of these plans")[0]
    chosen = "guess" if plans.index("guess") > plans.index("sort") else "sort"
    assert worker.asked(f"write its result: {chosen}") and "Plan 3" not in plans, "equal outlines are one"


async def test_without_an_outline_it_is_one_hard_step() -> None:
    answer, worker = await ask("scale", "Why?", Reply(text="Answer: 7"), options={"n": 2})
    assert answer.answer == "7" and len(worker.prompts) == 3 and "no outline" in answer.why


@pytest.mark.parametrize(("hard", "calls"), [("think", 1), ("vote", 4), ("model", 1)])
async def test_hard_steps_may_be_voted_on_or_given_to_a_stronger_model(hard: str, calls: int) -> None:
    def any_model(text: str) -> str:
        return OUTLINE if "Do not answer yet" in text else " Answer: 7"

    worker = Models({"": any_model, "strong": any_model})
    worker.models = ()

    ways: dict[str, dict[str, Any]] = {"vote": {"width": 4}, "model": {"hard": {"model": "strong"}}}
    options = {"n": 1, **ways.get(hard, {})}
    answer = await ran(worker, "scale", options)
    assert answer.answer == "7", answer.failure
    strong = worker.calls.count("strong")
    assert strong == (4 if hard == "model" else 0) and len(worker.calls) == 1 + 4 * calls


@given(st.lists(st.tuples(st.floats(0, 1, allow_nan=False), st.sampled_from([0.0, 1.0])), max_size=60))
def test_the_fit_never_rises_keeps_the_sum_and_is_the_best(records: list[tuple[float, float]]) -> None:
    fit = isotonic(records)
    values = [value for _, value, _ in fit]
    assert values == sorted(values, reverse=True) and [left for left, _, _ in fit] == sorted(
        {each for each, _, _ in fit}
    )
    said = [[value for left, value, _ in fit if left <= difficulty][-1] for difficulty, _ in records]
    assert sum(said) == pytest.approx(sum(right for _, right in records))
    error = sum((a - right) ** 2 for a, (_, right) in zip(said, records, strict=True))
    mean = sum(right for _, right in records) / max(1, len(records))
    assert error <= sum((mean - right) ** 2 for _, right in records) + 1e-9


def test_the_less_difficulties_tell_the_more_is_thought_through() -> None:
    """Hidden difficulty h; the easy way is right where h < 0.5. With noise fewer steps are sure enough to be easy, and
    the share that goes wrong stays below what the floor allows."""
    easy: list[float] = []
    for noise in (0.0, 0.2, 0.5, 5.0):
        rng = random.Random(4)
        hidden = [rng.random() for _ in range(6000)]
        seen = [(h + rng.gauss(0, noise), float(h < 0.5)) for h in hidden]
        tally = StepCounts(isotonic(seen[:3000]))
        passed = [right for difficulty, right in seen[3000:] if tally.chance(difficulty) >= 0.9]
        easy.append(len(passed) / 3000)
        assert not passed or sum(passed) / len(passed) > 0.85
    assert easy == sorted(easy, reverse=True) and easy[0] > 0.45 and easy[-1] < 0.02


def test_defaults_are_a_plan_of_their_own() -> None:
    assert Scale().records == () and Scale().width == 1
