"""The searches with the bundled model: what it proposes, what it finds a state worth, and what the tables say."""

from __future__ import annotations

import math
from random import Random

import pytest

from experiments._tools.searches.script import steps_of
from experiments._tools.searches.world import Outcome
from experiments.search_model import run as studied
from experiments.search_model.run import ILLEGAL, Cell, Model, Stepper, Threader, cells, drawn, page_of
from plait.core.events import Job
from plait.core.ops import ModelCall, Text
from plait.core.sampling import Sampling
from plait_bench.tasks.countdown import Countdown, solvable
from training.task import is_test

STATE = ((14, 10, 8, 3), 36)


@pytest.fixture(scope="module")
def model() -> Model:
    made = Model()
    made.prepare(STATE)
    return made


def asked(text: str, *labels: str) -> Job:
    sampling = Sampling(labels=labels, max_tokens=1 if labels else 16)
    op = ModelCall(prompt=(Text(text=f"<serial> 8 T36 14 10 8 3 <go>{text}"),), sampling=sampling)
    return Job(run="r", step="s", attempt=1, op=op)


def test_the_next_child_of_a_state_is_the_next_step_that_was_drawn(model: Model) -> None:
    first, second = Stepper(model), Stepper(model)
    said = [first(asked(""), Random(1)) for _ in range(40)]
    assert [each.value for each in said] == [second(asked(""), Random(2)).value for _ in range(40)]
    assert len({str(each.value) for each in said}) > 5 and all(4 <= each.usage.completion <= 16 for each in said)
    task = Countdown(text="14 10 8 3 -> 36", any_width=True)
    for each in said:
        assert each.value == ILLEGAL or task.state_key(str(each.value)) is not None
    assert task.complete(ILLEGAL) and task.extract(ILLEGAL) is None, "a dead end"


def test_a_single_number_is_worth_what_the_two_before_it_are(model: Model) -> None:
    step = Stepper(model)

    def value(text: str) -> float:
        said = step(asked(text, "<no>", "<yes>"), Random(0))
        assert said.labels is not None and said.usage.completion == 1
        return math.exp(said.labels["<yes>"])

    two = "14-10=4;8+4=12;"
    assert value(two) == pytest.approx(model.value(((12, 3), 36)), abs=1e-6)
    assert value(two + "12*3=36;") == value(two + "12+3=15;") == value(two)
    assert value("") == pytest.approx(model.value(STATE), abs=1e-6) and value("") != value(two)


def test_puzzles_have_solutions_and_four_numbers_are_held_out() -> None:
    for size in (3, 4):
        for text in drawn(size, 20, 1):
            task = Countdown(text=text, count=size)
            assert solvable(task.numbers, task.target) and (size == 3 or is_test(task.numbers))


@pytest.mark.parametrize("method", ["majority", "beam", "threads"])
def test_a_method_runs_on_what_the_models_say(method: str, model: Model) -> None:
    done = Cell(4, 24, method, "own").run(model, Threader(), "14 10 8 3 -> 36", 1)
    assert done.tokens > 50 and done.right <= done.covered and done.seconds > 0


def test_the_tables_compare_on_the_puzzles_that_all_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studied, "SETTINGS", ((3, 16),))

    def outcomes(count: int, right: int) -> list[Outcome]:
        return [Outcome(i < right, i < right, 16, 150, 1.0, 1.0) for i in range(count)]

    found = {cell.name: outcomes(20, 15 if cell.scorer == "own" else 10) for cell in cells()}
    found["mcts; 3 numbers; exact; 16"] = outcomes(10, 10)
    rows = page_of(found).splitlines()
    assert rows[0] == "### 3 numbers, 16 nodes, 10 puzzles"
    found["mcts; 3 numbers; exact; 16"] = outcomes(20, 20)
    beam = next(row for row in page_of(found).splitlines() if row.startswith("| beam |"))
    assert beam.startswith("| beam | 50.0% | 75.0% | 50.0% | +25.0 (") and beam.endswith(") | 75.0% | 150 |")
    assert steps_of("14 - 3 = 11 | 11 10 8") == [(14, "-", 3, 11)]
