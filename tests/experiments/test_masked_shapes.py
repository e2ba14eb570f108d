"""Study `masked_shapes`: what a shape is, that the two kinds are told apart, and what the page makes of its rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from experiments.masked_shapes.run import drawn, page_of, shape, trained
from training.tables.questions import is_test


def test_a_shape_has_no_names_numbers_columns_or_relations() -> None:
    assert shape("what is the sum of Ardan's owner's age and 31?") == "what is the sum of s0's R's A and n0?"
    assert shape("what is the sum of Brefik's twin's debt and 7?") == shape(
        "what is the sum of Ardan's owner's age and 31?"
    )
    assert shape("which of Ardan and Brefik has the most income?") != shape(
        "which of Ardan and Brefik has the least income?"
    )


def test_questions_of_known_and_new_shape_are_as_many_of_each_number_of_calls() -> None:
    known = trained(300, 1)
    asked = list(drawn(2, 1, known))
    assert asked and all(is_test(text) and (shape(text) in known) == kind for kind, _, text in asked)
    for size in {size for _, size, _ in asked}:
        assert [kind for kind, of, _ in asked if of == size].count(True) * 2 == sum(of == size for _, of, _ in asked)


def test_the_page_says_how_much_worse_new_shapes_are() -> None:
    rows = [{"mode": "held out", "known": True, "calls": 4, "right": 9, "asked": 10}]
    rows += [{"mode": "plan", "known": known, "calls": 4, "right": right, "asked": 40}
             for known, right in ((True, 40), (False, 20))]  # fmt: skip
    page = page_of(rows, "command")
    assert "| 4 | 10 | 90.0 % (59.6–98.2) |" in page
    assert "| plan | 4 | 40 | 100.0 % (91.2–100.0) | 50.0 % (35.2–64.8) | -50.0 points (-64.8 to -32.8) |" in page
