"""The task `brackets`: what is a sum, its steps, what they come to, and answers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import TaskError
from plait_bench.tasks.brackets import Brackets, read, steps, value


def test_steps_are_brackets_as_they_close_and_last_what_is_left() -> None:
    made = steps(read("(14 - 3 * 4) * 2 + ((7 + 5) - 9)"))
    assert [step.text for step in made] == ["a = 14 - 3 * 4", "b = 7 + 5", "c = b - 9", "d = a * 2 + c"]
    assert [step.needs for step in made] == [(), (), (1,), (0, 2)]
    assert [step.operations for step in made] == [2, 1, 1, 2]
    assert value(made) == 7


def test_the_task_asks_and_judges() -> None:
    task = Brackets(text=" (14-3*4) * 2+(7 + 5) =?")
    assert task.render() == "(14 - 3 * 4) * 2 + (7 + 5) = ?" and task.right() == 16
    said = "3 * 4 = 12; 14 - 12 = 2; 7 + 5 = 12; 2 * 2 = 4; 4 + 12 = 16; 16"
    assert task.extract(said) == 16 and task.verify(16) and task.verify("16") and not task.verify(12)
    assert task.steps(said)[-1] == "4 + 12 = 16" and len(task.steps(said)) == 5
    assert task.extract("nothing") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [("x = 1045", 1045), ("it is -45", -45), ("it is −45", -45), ("1e45", None), ("45.9", None), ("1,045", None),
     ("so 45.", 45), ("45, as said", 45), ("step45", None), ("12-45", 45)],
)  # fmt: skip
def test_a_number_is_read_whole(text: str, answer: int | None) -> None:
    task = Brackets(text="(40 + 5) * 1")
    assert task.right() == 45
    assert task.extract(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "(7)",
        "7 +",
        "(7 + 5",
        "7 + 5)",
        "7 5",
        "7 / 5",
        "3 - 5",
        "100 * 9",
        "200 + 1",
        "(1 + 1) " * 300,
        "a + 1",
    ],
)
def test_what_is_no_sum_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TaskError):
        Brackets(text=text)


def test_more_than_eight_steps_are_refused() -> None:
    assert Brackets(text="+".join(["(1 + 1)"] * 7)).right() == 14
    with pytest.raises(TaskError, match="more than 8 steps"):
        Brackets(text="+".join(["(1 + 1)"] * 8))


@given(st.text(alphabet="0123456789+-*() =?", max_size=40))
def test_it_agrees_with_python_or_refuses(text: str) -> None:
    try:
        task = Brackets(text=text)
    except TaskError:
        return
    bare = text.replace("=", "").replace("?", "")
    spaced = "".join(f" {word} " for word in read(text))
    assert set(bare) <= set("0123456789+-*() ") and task.right() == eval(spaced)  # of digits and signs
