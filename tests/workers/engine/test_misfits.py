"""Models and settings that an engine cannot run: each is refused in a sentence with the remedy, before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError, EngineError
from plait.workers._shared import resources
from plait.workers.engine import Engine, engine_loader
from plait.workers.engine.engine_loader import misfit, prepare
from plait.workers.engine.options import EngineOptions

SHAPE = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "architectures": ["LlamaForCausalLM"]}
SIZES = (32, 64, 128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(SHAPE))
    return tmp_path / "tiny"


def test_a_head_size_that_the_backend_lacks_is_named_with_those_that_it_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_loader, "environment", lambda *_, **__: False)
    monkeypatch.setattr(engine_loader, "_head_sizes", lambda: SIZES)
    with pytest.raises(EngineError, match=r"heads of size 16, .* takes 32, 64, 128 alone: choose another model"):
        prepare(EngineOptions(model=str(folder)))


@pytest.mark.parametrize(
    ("config", "fits"),
    [
        (SHAPE, False),
        ({**SHAPE, "head_dim": 64}, True),
        ({**SHAPE, "num_attention_heads": 2}, True),
        ({"architectures": ["Other"]}, True),  # not known: vLLM says what is wrong with it
    ],
)
def test_what_fits_is_not_refused(config: dict[str, Any], fits: bool) -> None:
    assert (misfit(config, "m", SIZES) == "") == fits
    assert misfit(config, "m", ()) == ""


def test_vllm_says_which_sizes_it_takes() -> None:
    pytest.importorskip("vllm")
    assert 64 in engine_loader._head_sizes() and 16 not in engine_loader._head_sizes()


@pytest.mark.parametrize("dtype", ["float64", "int8", "bf16"])
def test_a_type_that_no_engine_computes_in_is_refused_at_once(folder: Path, dtype: str) -> None:
    with pytest.raises(ConfigError, match=r"dtype.*'auto', 'bfloat16', 'float16', 'half', 'float32' or 'float'"):
        Engine(str(folder), dtype=dtype)


def test_what_is_no_model_is_refused_before_anything_is_imported(tmp_path: Path) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "file").write_text("x")
    for name, said in (
        ("nothing", "there is no model at"),
        ("file", "is a file, not a model folder"),
        ("hollow", "has no config.json"),
    ):
        with pytest.raises(EngineError, match=f"{said}.*give a folder with config.json, a tokenizer and safetensors"):
            resources.local_model(str(tmp_path / name))
    (tmp_path / "hollow" / "config.json").write_text("[1]")
    with pytest.raises(EngineError, match="is not a JSON object"):
        resources.read_config(tmp_path / "hollow")
