"""The command line: checking traces, and the whole chain from nothing to a table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.__main__ import check_traces, device_of, main, parse
from training.evaluate import TABLE, Row, update_card


def test_check_counts_wrong_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.txt"
    right = "<direct> T36 14 10 8 3 <go> 14 + 8 = 22 ; 22 - 10 = 12 ; 12 * 3 = 36 <end>"
    path.write_text(right + "\n" + right.replace("= 12 ;", "= 13 ;") + "\n")
    assert check_traces(path, seed=0) == 1
    assert "trace 2:" in capsys.readouterr().out
    assert main(["check", "--text", str(path)]) == 1
    assert check_traces(None, seed=0, count=50) == 0


def test_defaults_and_devices() -> None:
    options = parse([])
    assert (options.command, options.device) == ("all", "auto")
    assert (options.size, options.steps, options.model.name) == ("small", 16_000, "countdown")
    large = parse(["--size", "large"])
    assert (large.steps, large.model.name, large.folder.name) == (8_500, "countdown-large", "large")
    assert parse(["--size", "large", "--steps", "7"]).steps == 7
    assert device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_of("auto").type == ("cuda" if there else "cpu")
    assert device_of("cpu").type == "cpu"
    if there:
        assert device_of("cuda:0") == torch.device("cuda", 0)
    else:
        with pytest.raises(SystemExit, match="sees no GPU here; use --device cpu"):
            device_of("cuda")


def test_a_model_card_takes_the_table_between_its_marks(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"# A model\n\n{TABLE[0]}\nold\n{TABLE[1]}\n\nMore.\n")
    row = Row("serial, T=0", 10, 0.5, (0.2, 0.8), 0.0, 300.0, 300.0, 300.0)
    assert update_card([row], card)
    text = card.read_text()
    assert "50.0 % (20.0–80.0)" in text
    assert "old" not in text
    assert text.startswith("# A model")
    assert text.endswith("More.\n")
    card.write_text("no marks")
    assert not update_card([row], card)
    assert card.read_text() == "no marks"


@pytest.mark.slow
def test_one_command_trains_exports_and_evaluates(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "build"
    options = ["--steps", "3", "--problems", "2", "--quick", "--model", str(model), "--folder", str(folder)]
    assert main([*options, "--device", "cpu", "--threads", "1"]) == 0
    assert (model / "model.safetensors").stat().st_size < 8_000_000
    assert (folder / "evaluation.json").exists()
    assert (folder / "last.pt").exists()
    card = (model / "README.md").read_text()
    assert f"{TABLE[0]}\n{TABLE[1]}" in card  # a quick evaluation is not the table
    (model / "README.md").write_text("mine")
    assert main(["export", *options, "--device", "cpu"]) == 0
    assert (model / "README.md").read_text() == "mine"


def test_a_model_agrees_with_itself_and_not_with_a_fresh_one() -> None:
    from training.agreement import agreement, prompts
    from training.export import load
    from training.model import Llama, ModelConfig
    from training.trades import TRADES

    shipped = load(TRADES["countdown"].folders["small"])
    asked = prompts("child", 2, seed=1)
    same, total = agreement(shipped, shipped, asked)
    assert same == total > 40
    assert agreement(Llama(ModelConfig()), shipped, asked)[0] < total / 2


def test_drafts_of_the_planner_of_tools_are_compared_by_word_step_and_text() -> None:
    from training.agreement import lines_of, tables_report
    from training.export import load
    from training.trades import TRADES

    assert lines_of([True, True, False, True, True], [False, True, False, True, True]) == [True, False, True]
    assert lines_of([True, False], [True, False]) == [True, False]
    assert lines_of([], []) == []
    folders = TRADES["tables"].folders
    target, tiny = load(folders["small"]), load(folders["tiny"])
    table = tables_report({"itself": target, "tiny": tiny}, target, 8, seed=3)
    assert table.count("| `itself` | 100.00 %") == 4
    assert table.count("| `tiny` |") == 4
    words = float(table.split("| plan | `tiny` | ")[1].partition(" %")[0])
    assert 50 < words < 100
