"""Sums: what they come to, how they are put to the model, hostile text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import TaskError
from plait_bench.tasks.sums import Sums
from training.arithmetic.generate import draw_sum


@given(st.integers(0, 10**9))
def test_a_sum_comes_to_what_python_says(seed: int) -> None:
    text = " ".join(draw_sum(random.Random(seed)))
    task = Sums(text=text)
    assert task.right() == eval(text) and task.verify(task.right()) and not task.verify(task.right() + 1)
    assert task.render() == f"<sum> 2 {text} <go>"


def test_the_answer_stands_behind_the_hit() -> None:
    task = Sums(text="14 - 3*4 + 9 =", skill=4)
    assert task.render() == "<sum> 4 14 - 3 * 4 + 9 <go>"
    assert task.extract("3 * 4 = 12 ; 14 - 12 = 2 ; 2 + 9 = 11 <hit> 11 <end>") == 11
    assert task.extract("3 * 4 = 12 ; 14 - 12") is None and task.extract("<hit> none") is None
    assert task.extract("<hit> 11.5") is None and task.extract("<hit> 11,5") is None and task.extract("<hit> 11.") == 11
    assert task.steps("3 * 4 = 12 ; 14 - 12 = 2 <hit> 2") == ["3 * 4 = 12", "14 - 12 = 2"]


@pytest.mark.parametrize(
    "text", ["", "1", "1 +", "+ 1", "1 / 2", "1 + 200", "1 + -2", "2 ** 3", "1 + 2" * 50, "1+٣", "a + b"]
)
def test_anything_else_is_refused_in_words(text: str) -> None:
    with pytest.raises(TaskError, match="for example"):
        Sums(text=text)
