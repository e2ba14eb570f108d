"""Supervised training on a model's own runs: what is learned of a record, and how two models are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.shortest.run import write
from plait_research.rollouts.record import Record, WeightsSegment
from training import export, shortest
from training.compare import weights_of
from training.model import Llama, ModelConfig
from training.task import is_test
from training.vocab import decode, encode

WAY = "asked for 8 threads"
SMALL = ModelConfig(d=32, layers=1, heads=2, ff=32)


def record(tokens: tuple[int, ...], written: int, reward: float | None = 1.0, rollout: str = "0/0") -> Record:
    read = len(tokens) - written
    segments = (WeightsSegment(start=read, end=len(tokens)),) if written else ()
    return Record(
        rollout=rollout, group="0", tokens=tokens, mask=(0,) * read + (1,) * written, segments=segments, reward=reward
    )


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A small model's folder."""
    torch.manual_seed(0)
    export.export(Llama(SMALL), tmp_path / "start", {})
    return tmp_path / "start"


def test_problems_are_different_ones_of_the_training_split() -> None:
    made = shortest.problems(50, seed=3)
    assert len(set(made)) == 50
    assert not any(is_test([int(word) for word in text.partition(" -> ")[0].split()]) for text in made)
    assert made == shortest.problems(50, seed=3) != shortest.problems(50, seed=4)


def test_only_what_the_model_wrote_in_right_runs_is_learned() -> None:
    found = shortest.traces(
        [record((1, 2, 3, 4), 2), record((1, 2), 0), record((5, 6), 1, 0.0), record((5, 6), 1, None)]
    )
    assert [(trace.ids, trace.weights) for trace in found] == [([1, 2, 3, 4], [0.0, 0.0, 1.0, 1.0])]


def test_runs_of_several_widths_are_asked_for_one() -> None:
    parent, thread = encode("<parent> 4 T36 14 10 8 3 <go> <none>"), encode("<child> T36 4 8 3 <go> <none>")
    found = shortest.traces([record(tuple(parent), 1), record(tuple(thread), 1)], asked=8)
    assert [decode(trace.ids).split()[:2] for trace in found] == [["<parent>", "8"], ["<child>", "T36"]]


@torch.inference_mode()
def chance(model: Llama, ids: list[int]) -> float:
    """The chance of the last token."""
    likely = model.logits(model.hidden(torch.tensor([ids]), torch.float32), torch.float32)[0].softmax(-1)
    return float(likely[-2, ids[-1]])


def test_training_makes_it_likelier_and_goes_on_where_it_was(start: Path, tmp_path: Path) -> None:
    data = shortest.traces([record((7, 8, 9 + place), 1) for place in (0, 0, 0, 1)])
    before = chance(export.load(start), [7, 8, 9])
    folder = tmp_path / "after"
    model = shortest.train(start, data, folder, epochs=20, rate=1e-2, seed=1)
    assert chance(model, [7, 8, 9]) > 0.5 > before
    assert 0.05 < chance(model, [7, 8, 10]), "a quarter of the data"
    again = shortest.train(start, data, folder, epochs=20, rate=1e-2, seed=1)
    assert chance(again, [7, 8, 9]) == chance(model, [7, 8, 9]), "nothing is trained twice"
    assert len((folder / "loss.jsonl").read_text().splitlines()) == 20


def test_two_models_are_compared_on_the_problems_that_both_ran(start: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    torch.manual_seed(1)
    export.export(Llama(SMALL), other, {})
    folders = [start, other]
    rows = [
        {"weights": weights_of(folder), "way": WAY, "problem": n, "run": [True, 100 - 20 * side, 50, 8]}
        for side, folder in enumerate(folders) for n in range(30 if side else 40)
    ]  # fmt: skip
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    claims, table, figures = shortest.findings(folders, shortest.kept_runs(path))
    assert figures[WAY]["n"] == 30
    assert figures[WAY]["total"] == pytest.approx((0.8, 0.8, 0.8))
    assert "0.80" in claims[0] and "paired over 30 problems" in claims[0]
    assert [row[4] for row in table] == ["100", "80"]
    page = write(folders, shortest.kept_runs(path), "About.", "command", tmp_path / "page")
    assert "0.80" in page.read_text()
