"""The page of HumanEval by a small model is that of its rows."""

from __future__ import annotations

import json

from experiments.humaneval.run import FOLDER, KEPT, page


def test_the_page_is_that_of_its_rows() -> None:
    rows = [json.loads(line) for line in KEPT.read_text("utf-8").splitlines()]
    assert len({row["text"] for row in rows}) == 164 and {row["draw"] for row in rows} == {0, 1, 2}
    assert (FOLDER / "README.md").read_text("utf-8") == page(rows, 160)


def test_a_selected_program_counts_only_if_it_is_right() -> None:
    program = {"right": True, "weight": 1, "passed": 1}
    row = {
        "text": "a",
        "draw": 0,
        "n": 4,
        "programs": [program, {**program, "right": False, "weight": 3}],
        "selected": False,
        "tokens": 40,
    }
    said = page([row, {**row, "text": "b"}], 160)
    assert "| one program is right (pass@1) | 25.0 %" in said
    assert "| any of 4 is | 100.0 %" in said and "| the one that is selected is | 0.0 %" in said


def test_draws_of_a_problem_count_once() -> None:
    """Two draws of one problem are not two problems: the interval is over problems."""
    row = {"text": "a", "draw": 0, "n": 1, "programs": [], "selected": True, "tokens": 40}
    said = page(
        [row, {**row, "draw": 1, "selected": False}, {**row, "text": "b"}, {**row, "text": "b", "draw": 1}], 160
    )
    assert "for each of 2 problems" in said and "| the one that is selected is | 75.0 %" in said
    assert "Selected in each draw: 100.0 %, 50.0 %." in said
