"""The command line: checking traces, and the whole chain from nothing to a table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.__main__ import check_traces, device_of, main, parse


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
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type in ("cpu", "cuda")


@pytest.mark.slow
def test_one_command_trains_exports_and_evaluates(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "build"
    options = ["--steps", "3", "--problems", "2", "--quick", "--model", str(model), "--folder", str(folder)]
    assert main([*options, "--device", "cpu", "--threads", "1"]) == 0
    assert (model / "model.safetensors").stat().st_size < 8_000_000
    assert (folder / "evaluation.json").exists()
    assert (folder / "last.pt").exists()
