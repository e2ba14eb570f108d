"""The page of changes of a running plan holds what its study measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.replan_each.run import SHAPES, measure, play, table
from tests.machine.invariants import check_invariants

PAGE = Path(__file__).parents[2] / "experiments" / "replan_each" / "README.md"


@pytest.mark.parametrize("replan", ["whole", "each"])
def test_a_row_of_the_page_is_measured_again(replan: str) -> None:
    row = measure("chain of 4", 0.1, "each" if replan == "each" else "whole")
    head = f"| chain of 4 | 10% | `{replan}` | 100% | {row.tools:.2f} | {row.models:.2f} |"
    assert head in PAGE.read_text(encoding="utf-8")


def test_every_answer_of_the_script_is_right() -> None:
    rows = [line.split(" | ") for line in table(questions=3).splitlines()[2:]]
    assert len(rows) == len(SHAPES) * 6
    assert {row[3] for row in rows} == {"100%"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_machine_stays_sound_while_plans_change(shape: str) -> None:
    for seed in range(5):
        assert play(shape, 0.5, seed, "each", check=check_invariants).status == "done"
