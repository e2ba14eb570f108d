"""The page of changes of a running plan holds what its study measures."""

from __future__ import annotations

import json

import pytest

from experiments.replan_each.run import KEPT, PAGE, SHAPES, measure, play, situations, table
from tests.machine.invariants import check_invariants


def test_the_page_has_the_rows_that_are_kept() -> None:
    rows = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    assert table(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("replan", ["whole", "each"])
def test_a_row_of_the_page_is_measured_again(replan: str) -> None:
    row = measure("chain of 4", 0.1, "each" if replan == "each" else "whole")
    head = f"| chain of 4 | 10% | `{replan}` | 100% | {row.tools:.2f} | {row.models:.2f} |"
    assert head in PAGE.read_text(encoding="utf-8")


def test_every_answer_of_the_script_is_right() -> None:
    rows = situations(questions=3)
    assert len(rows) == len(SHAPES) * 6
    assert {row["right"] for row in rows} == {1.0}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_machine_stays_sound_while_plans_change(shape: str) -> None:
    for seed in range(5):
        assert play(shape, 0.5, seed, "each", check=check_invariants).status == "done"
