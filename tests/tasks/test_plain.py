"""The task `plain`: where the answer stands, and when two are the same."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from plait.core.errors import TaskError
from plait.tasks.plain import Plain

TASK = Plain(text="What is 6 times 7?")


def test_the_text_as_it_is() -> None:
    assert TASK.render() == TASK.render("threads", 4) == TASK.text and TASK.chat()
    assert TASK.verify("42") is None


def test_nothing_to_answer() -> None:
    with pytest.raises(TaskError, match="nothing to answer"):
        Plain(text=" \n").render()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", None),
        (" \n ", None),
        ("42", "42"),
        ("  two lines\nof text ", "two lines\nof text"),
        (r"so \boxed{41}, no: \boxed{42}. Done", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{x} and \boxed{never closed", "x"),
        (r"\boxed{}", r"\boxed{}"),
        ("Answer: 1\nFinal answer: 42 apples\nBye", "42 apples"),
        ("**Answer:** 42", "42"),
        ("the answer is 42", "42"),
        ("The answer is: **42**", "42"),
        (r"answer: \boxed{7}" + "\nanswer: 8", "8"),
        ("an answer without a colon", "an answer without a colon"),
        ("answer:", "answer:"),
        (r"\boxed{answer: 5}", "5"),
    ],
)
def test_extract(text: str, answer: str | None) -> None:
    assert TASK.extract(text) == answer


@pytest.mark.parametrize(
    "same",
    [
        ["42", " 42. ", "42.0", "$42$", "042", "+42", "84/2", r"\frac{84}{2}", "**42**", r"\text{42}"],
        ["1,000", "1000", "1000.00", r"1\,000"],
        ["-0.5", "-1/2", r"-\frac{1}{2}", r"\dfrac{-1}{2}", "-.5"][:4],
        ["New  York", "new york.", "NEW\nYORK"],
    ],
)
def test_the_same_answer(same: list[str]) -> None:
    assert len({TASK.key(text) for text in same}) == 1, [TASK.key(text) for text in same]


def test_other_answers() -> None:
    others = ["42", "4.2", "-42", "42 apples", "1,0000", "10000", "1/0", "x", "", "1.2.3", "9" * 50]
    assert len({TASK.key(text) for text in others}) == len(others) - 0


SNIPPET = st.sampled_from([r"\boxed{", "{", "}", "answer:", "Answer is", "\n", " ", "**", "42", "x", ":", "\\", "/"])
TEXT = st.one_of(st.text(max_size=80), st.lists(SNIPPET, max_size=25).map("".join))


@given(TEXT)
def test_extracting_again_changes_nothing(text: str) -> None:
    answer = TASK.extract(text)
    assert (answer is None) == (not text.strip())
    if answer is not None:
        assert isinstance(answer, str) and TASK.extract(answer) == answer
        assert TASK.key(answer) == TASK.key(answer)


def test_long_texts_are_read_in_reasonable_time() -> None:
    for text in (
        r"\boxed{" * 50_000,
        "answer:" * 50_000,
        "answer: " + " " * 200_000 + "\n",
        "9" * 200_000,
        "answer is " * 50_000,
    ):
        answer = TASK.extract(text)
        assert answer is not None
        TASK.key(answer)
