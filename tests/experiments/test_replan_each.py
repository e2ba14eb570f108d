"""The page of changes of a running plan holds what its study measures."""

from __future__ import annotations

import json

import pytest

from experiments.replan_each.run import KEPT, PAGE, RECORDINGS, SHAPES, WAYS, measure, play, situations, table
from experiments.replan_each.toolbench import Call, shape_of
from tests.machine.invariants import check_invariants


def test_the_page_has_the_rows_that_are_kept() -> None:
    rows = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    assert table(rows) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_the_page_is_measured_again(way: str) -> None:
    row = measure("chain of 4", 0.1, way)
    head = f"| chain of 4 | 10% | {way} | 100% | {row.tools:.2f} | {row.models:.2f} |"
    assert head in PAGE.read_text(encoding="utf-8")


def test_every_answer_of_the_script_is_right() -> None:
    rows = situations(questions=3)
    assert len(rows) == (len(SHAPES) * 3 + 1) * len(WAYS)
    assert {row["right"] for row in rows} == {1.0}


@pytest.mark.parametrize("way", [way for way in WAYS if "each" in way])
@pytest.mark.parametrize("shape", [*SHAPES, RECORDINGS])
def test_the_machine_stays_sound_while_plans_change(shape: str, way: str) -> None:
    for seed in range(5):
        assert play(shape, 0.5, seed, way, check=check_invariants).status == "done"


def test_the_shape_of_a_recorded_solution() -> None:
    calls = [
        Call("list", "{}", '["alpha", "beta"]'),
        Call("read", '{"name": "gamma"}', "no such name"),
        Call("read", '{"name": "alpha"}', "found"),
        Call("read", '{"name": "alpha"}', "found"),
        Call("show", '{"name": "alpha", "of": "the user"}', "shown"),
    ]
    assert shape_of("Show gamma of the user", calls) == [([], False), ([], True), ([0], False)]
