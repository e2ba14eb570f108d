"""Arguments of vLLM's engine that plait passes on: which are refused, and what some of them do to real engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import ConfigError, EngineError
from plait.workers.engine import Engine
from plait.workers.engine.engine_loader import arguments
from plait.workers.engine.options import EngineOptions
from tests.one_engine import opened

from ..vllm_server import SERVER_DTYPE
from .test_engine import generate, words

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("enable_prefix_caching", "plait places steps where their prefix is cached"),
        ("scheduling_policy", "priorities"),
        ("max_num_seqs", "set the option 'slots'"),
        ("dtype", "it is an option"),
        ("data_parallel_size", "start several engines"),
    ],
)
def test_arguments_on_which_plait_relies_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"option 'engine_args'.*{name}.*{reason}"):
        Engine("a/model", engine_args={name: True})


def test_given_arguments_replace_the_defaults() -> None:
    spec = EngineOptions(model="m", engine_args={"block_size": 64, "pipeline_parallel_size": 2, "load_format": "dummy"})
    given = arguments(spec, "m", None, gpu=True)
    assert (given["block_size"], given["load_format"]) == (64, "dummy")
    assert given["distributed_executor_backend"] is None, "two stages need more than one process"
    speculating = EngineOptions(model="m", engine_args={"speculative_config": NGRAM})
    assert arguments(speculating, "m", None, gpu=False)["logits_processors"] is None, "vLLM does not combine them"


@pytest.mark.engine
async def test_an_argument_that_vllm_does_not_have_is_named_with_the_nearest(tiny_model: Path) -> None:
    given = {"max_num_batchd_tokens": 64}
    with pytest.raises(EngineError, match=r"'max_num_batchd_tokens'.*did you mean 'max_num_batched_tokens'"):
        await Engine(str(tiny_model), process="own", threads=1, engine_args=given).start()


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
async def test_speculation_changes_the_steps_and_not_the_text(engine: Engine, tiny_model: Path) -> None:
    if engine.options.process == "shared":
        pytest.skip("a greedy text is the same in both modes, so that one comparison is enough")
    given: dict[str, Any] = {"speculative_config": NGRAM, "max_num_batched_tokens": 1024}
    async with opened(tiny_model, process="own", dtype=SERVER_DTYPE, engine_args=given) as speculating:
        assert speculating._core is not None
        config = speculating._core.engine.vllm_config
        assert config.scheduler_config.max_num_batched_tokens == 1024
        for prompt in (words(0, 6), words(9, 30)):
            plain = await generate(engine, prompt, max_tokens=120, logprobs=True)
            fast = await generate(speculating, prompt, max_tokens=120, logprobs=True)
            assert fast.token_ids == plain.token_ids and fast.text == plain.text
            assert fast.logprob == pytest.approx(plain.logprob, abs=1e-3)
        stats = speculating.stats()
        assert stats["generated"] == 240 and stats["steps"] < 200, "several tokens came at once"


@pytest.mark.engine
@pytest.mark.slow
async def test_weights_that_are_not_read_and_weights_of_eight_bits(tiny_model: Path, tmp_path: Path) -> None:
    empty = shutil.copytree(tiny_model, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    async with opened(empty, process="own", engine_args={"load_format": "dummy"}) as engine:
        assert (await generate(engine, words(0, 6), max_tokens=5)).usage.completion == 5
    async with opened(quantized(tiny_model, tmp_path / "eight"), process="own") as engine:
        assert engine._core is not None
        assert engine._core.engine.vllm_config.model_config.quantization == "compressed-tensors"
        assert (await generate(engine, words(0, 6), max_tokens=5)).usage.completion == 5


def quantized(model: Path, folder: Path) -> Path:
    """Return a copy of a model with linear weights of eight bits, one scale for each row (compressed-tensors)."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        weight = weights[name].float()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        weights[name] = (weight / scale).round().char()
        weights[name + "_scale"] = scale
    save_file(weights, folder / "model.safetensors")
    eight = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": eight | {"strategy": "channel", "dynamic": False},
        "input_activations": eight | {"strategy": "token", "dynamic": True},
    }
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
