"""The page of HumanEval by a small model is that of its rows."""

from __future__ import annotations

import json

from experiments.humaneval.run import FOLDER, KEPT, page


def test_the_page_is_that_of_its_rows() -> None:
    rows = [json.loads(line) for line in KEPT.read_text("utf-8").splitlines()]
    assert len(rows) >= 20
    assert (FOLDER / "README.md").read_text("utf-8") == page(rows, 160)


def test_a_selected_program_counts_only_if_it_is_right() -> None:
    program = {"right": True, "weight": 1, "passed": 1}
    row = {"n": 4, "programs": [program, {**program, "right": False, "weight": 3}], "selected": False, "tokens": 40}
    said = page([row, row], 160)
    assert "| one program is right (pass@1) | 25.0 %" in said
    assert "| any of 4 is | 100.0 %" in said and "| the one that is selected is | 0.0 %" in said
