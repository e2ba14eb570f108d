"""Comparing two models: intervals, what counts as reproduced, the page, and that nothing is run twice."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments._tools.page import render
from experiments.retraining.run import write
from training import compare
from training.__main__ import main, parse
from training.compare import Kept, Pair, findings, on_engine, paired, weights_of
from training.evaluate import held_out
from training.export import export, load
from training.model import Llama, ModelConfig

BUNDLED = Path(__file__).parents[2] / "packages" / "plait-models" / "plait_models" / "models" / "countdown"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_paired_difference_and_its_interval() -> None:
    """Against the formula worked out by hand, and against how often it holds the true difference."""
    first, second = [True] * 60 + [False] * 40, [True] * 55 + [False] * 5 + [True] * 15 + [False] * 25
    more, low, high = paired(first, second)
    p, q = 16 / 102, 6 / 102
    half = 1.96 * math.sqrt((p + q - (p - q) ** 2) / 102)
    assert more == pytest.approx(0.10)
    assert (low, high) == (pytest.approx(p - q - half), pytest.approx(p - q + half))
    assert paired(first, first)[0] == 0.0
    assert paired([True], [False])[1] == -1.0
    with pytest.raises(ValueError, match="paired"):
        paired(first, second[1:])
    with pytest.raises(ValueError, match="paired"):
        paired([], [])
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        easy = [rng.random() for _ in range(150)]
        runs = [[rng.random() < 0.2 + 0.6 * each + shift for each in easy] for shift in (0.0, 0.1)]
        _, low, high = paired(*runs)
        held += low <= 0.1 <= high
    assert 0.92 < held / 400 <= 1.0


def test_reproduced_is_a_share_within_the_first_ones_interval() -> None:
    first = [True] * 600 + [False] * 400  # 95 % Wilson: 56.9 to 63.0
    for solved, said in ((568, False), (570, True), (629, True), (631, False)):
        assert Pair("m", first, [True] * solved + [False] * (1000 - solved)).reproduced is said, solved
    pairs = [Pair("a", first, first), Pair("b", first, [False] * 1000)]
    claims, rows, figures = findings(pairs)
    assert claims[0].startswith("In 1 of 2 modes")
    assert rows[0][2:] == ["60.0 % (56.9–63.0)"] * 2 + ["+0.0 points (-0.3 to +0.3)", "yes"]
    assert rows[1][-1] == "no"
    assert figures["b"]["difference"]["value"] == -0.6


def _model(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    export(Llama(ModelConfig(d=32, layers=1, heads=2, ff=48)), folder, {"steps": 3, "tokens": 4000, "seed": seed})
    return folder


def test_one_command_compares_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = _model(tmp_path / "one", 1), _model(tmp_path / "two", 2)
    assert weights_of(one) != weights_of(two)
    direct = {"direct, T=0": compare.MODES["direct, T=0"]}
    monkeypatch.setattr(compare, "MODES", direct)
    words = ["compare", "--model", str(one), "--other", str(two), "--folder", str(tmp_path / "f"), "--problems", "4"]
    words += ["--threads", "1"]
    assert main([*words, "--device", "cpu", "--out", str(tmp_path / "out")], write) == 0
    said = json.loads((tmp_path / "out" / "data" / "retraining.json").read_text())
    page = (tmp_path / "out" / "README.md").read_text()
    assert page == render(said)
    assert set(said["figures"]["modes"]) == set(direct)
    assert "| direct, T=0 | 4 | " in page
    assert "| shipped | 3 | 4,000 |" in page
    assert "--problems 4 --out " in said["command"]

    def forbidden(*_: object) -> None:
        raise AssertionError("this was run before")

    monkeypatch.setattr(compare, "MODES", dict.fromkeys(direct, forbidden))
    asked = []
    monkeypatch.setattr(compare, "on_engine", lambda folder, planner, count: asked.append(planner) or [True] * count)
    assert main([*words, "--device", "cpu", "--out", str(tmp_path / "out"), "--engine"], write) == 0
    assert asked == [planner for planner in compare.ENGINE.values() for _ in range(2)]
    assert "on the engine" in (tmp_path / "out" / "README.md").read_text()


def test_every_mode_is_run_by_the_shipped_model() -> None:
    puzzles = held_out(3)
    solved = {mode: sum(o.solved for o in run(load(BUNDLED), puzzles)) for mode, run in compare.MODES.items()}
    assert list(solved) == ["serial, T=0", "direct, T=0", "threads k=8 forked, T=0"]
    assert solved["threads k=8 forked, T=0"] == 3


def test_a_kept_run_belongs_to_its_weights_mode_and_number(tmp_path: Path) -> None:
    one, two = _model(tmp_path / "one", 1), _model(tmp_path / "two", 2)
    kept = Kept(tmp_path / "kept.json")
    ran = []

    def run() -> list[bool]:
        ran.append(1)
        return [True]

    for folder, mode, count in ((one, "a", 1), (two, "a", 1), (one, "b", 1), (one, "a", 2)):
        kept.get(folder, mode, count, run)
    assert len(ran) == 4
    assert Kept(tmp_path / "kept.json").get(two, "a", 1, run) == [True]
    assert len(ran) == 4


def test_an_engine_that_fails_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="plait eval ended with 2 after 0 of 3"):
        on_engine(tmp_path / "nothing", "no-such-planner", 3)


def test_the_page_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    page = write([Pair("m", [True], [True])], [{}, {}], "python -m training reproduce", tmp_path)
    assert str(tmp_path) not in page.read_text()


def test_what_is_trained_again_does_not_go_over_the_shipped_model() -> None:
    options = parse(["reproduce"])
    assert options.model.name == "countdown"
    assert options.other == Path("build/training/small-again/model")
    assert (options.folder.name, options.problems) == ("small-again", 1000)
    assert parse([]).problems == 500


@pytest.mark.slow
def test_one_command_trains_again_and_compares(tmp_path: Path) -> None:
    before = (BUNDLED / "model.safetensors").read_bytes()
    words = ["reproduce", "--steps", "2", "--problems", "2", "--folder", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--threads", "1"], write) == 0
    said = json.loads((tmp_path / "retraining.json").read_text())
    assert said["figures"]["training"]["retrained"]["steps"] == 2
    assert said["figures"]["training"]["shipped"]["steps"] == 16_000
    assert (BUNDLED / "model.safetensors").read_bytes() == before
