"""Planner `takeover`: whose text it is, the rate of take-overs, what is left of a rejected segment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import FieldError
from plait.tasks.plain import Plain
from plait_research.planners.takeover import Takeover, p_value
from tests.planners.two_models import Models, goes_on, ran

TARGET = " t1 t2 t3 t4 t5 t6 t7 t8 Answer: 7"
DRAFT = " d1 d2 d3 d4 d5 d6 d7 d8 Answer: 9"
BOTH = {"draft": {"model": "small", "max_tokens": 3, "temperature": 0.0}, "target": {"model": "large"}}


def models(judge=lambda text: 1.0) -> Models:
    return Models({"small": goes_on(DRAFT), "large": goes_on(TARGET)}, judge)


async def test_at_threshold_1_it_is_the_target_and_the_draft_is_not_asked() -> None:
    worker = models()
    answer = await ran(worker, "takeover", {**BOTH, "n": 1, "threshold": 1.0})
    assert answer.value == TARGET and set(worker.calls) == {"large"}
    assert "the target wrote all" in answer.why


async def test_where_each_segment_is_rejected_it_is_the_target_too() -> None:
    worker = models(lambda text: 0.0)
    answer = await ran(worker, "takeover", {**BOTH, "n": 1, "threshold": 0.5})
    assert answer.value == TARGET, "a rejected segment leaves no trace"
    assert "4 of 4 drafted segments taken over (100%)" in answer.why


async def test_at_threshold_0_it_is_the_draft_and_the_scores_are_listed() -> None:
    worker = models(lambda text: 0.25)
    answer = await ran(worker, "takeover", {**BOTH, "n": 2, "threshold": 0.0})
    assert answer.answer == "9" and worker.tokens["large"] == 0
    assert answer.data == {
        "drafted": 8, "rejected": 0, "unknown": 0, "scores": [[0.25, 0.25]] * 4, "taken": [0] * 4
    }  # fmt: skip


async def test_a_segment_that_does_badly_is_replaced_and_the_draft_goes_on_behind_it() -> None:
    judge = lambda text: 0.1 if "d4" in text.rpartition("d3")[2] else 0.9  # noqa: E731  # the second segment
    worker = models(judge)
    answer = await ran(worker, "takeover", {**BOTH, "n": 1, "records": [[0.2, 0.5, 0.8, 0.9]] * 2, "threshold": 0.2})
    assert answer.value == " d1 d2 d3 t4 t5 t6 d7 d8 Answer: 9"
    assert worker.calls.count("large") == 1 and "1 of 4 drafted segments taken over (25%)" in answer.why


async def test_an_unknown_score_is_a_take_over() -> None:
    told = await ran(models(), "takeover", {**BOTH, "n": 1, "scorer": "function"})
    assert told.value == TARGET and "4 of unknown score" in told.why


async def test_the_drafts_own_confidence_needs_no_call_of_the_target() -> None:
    worker = models()
    answer = await ran(worker, "takeover", {**BOTH, "n": 1, "scorer": "logprob", "threshold": 0.6})
    assert answer.value == DRAFT and set(worker.calls) == {"small"}, "e^-0.5 is above 0.6"


class Ends(Plain):
    """A task that is complete at a word."""

    def complete(self, partial: str) -> bool:
        return "d5" in partial


async def test_a_text_that_the_task_finds_complete_is_not_gone_on_with() -> None:
    worker = models()
    answer = await ran(worker, "takeover", {**BOTH, "n": 1, "threshold": 0.0}, task="tests.planners.test_takeover:Ends")
    assert answer.value == " d1 d2 d3 d4 d5 d6" and worker.calls == ["small", "large?"] * 2


async def test_chains_vote() -> None:
    answers = iter([" Answer: 1", " Answer: 2", " Answer: 2"])
    worker = Models({"small": lambda text: next(answers), "large": goes_on(TARGET)})
    answer = await ran(worker, "takeover", {**BOTH, "n": 3, "threshold": 0.0})
    assert answer.answer == "2" and "2 of 3 votes" in answer.why


@given(
    st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=30),
    st.floats(0, 1, allow_nan=False),
    st.floats(0, 1, allow_nan=False),
)
def test_a_worse_score_is_never_less_likely_taken_over(calibration: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < p_value(low, calibration) <= p_value(high, calibration) <= 1


@pytest.mark.parametrize("alpha", [0.1, 0.4])
def test_the_rate_is_at_most_alpha_where_scores_are_exchangeable(alpha: float) -> None:
    rng = random.Random(3)
    taken = 0
    for _ in range(4000):
        scores = [rng.betavariate(2, 1) for _ in range(40)]
        taken += p_value(scores[0], scores[1:]) <= alpha
    assert taken / 4000 == pytest.approx(alpha, abs=0.02)  # 39 scores: alpha is a multiple of 1/40


@pytest.mark.parametrize("wrong", [{"threshold": 1.2}, {"n": 0}, {"records": [["a"]]}, {"threshold": -1}])
def test_options_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(FieldError):
        Takeover(**wrong)  # type: ignore[arg-type]
