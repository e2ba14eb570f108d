"""A call that names no temperature is sampled as the model's `generation_config` has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plait.core.events import Job
from plait.core.ops import ModelCall
from plait.core.result import Result
from plait.core.sampling import Sampling
from plait.workers.engine.sampling_parameters import settled
from tests.one_engine import opened

QWEN = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}


@pytest.mark.parametrize(
    ("generation", "given", "becomes"),
    [
        (QWEN, {}, (0.6, 0.95, 20)),
        (QWEN, {"top_p": 0.5}, (0.6, 0.5, 20)),
        (QWEN, {"temperature": 1.0}, (1.0, 1.0, 0)),
        (QWEN, {"temperature": 0.0}, (0.0, 1.0, 0)),
        ({"temperature": 0.3}, {}, (0.3, 1.0, 0)),
        ({"do_sample": True}, {}, (1.0, 1.0, 0)),
        ({"do_sample": False, "temperature": 0.6}, {}, (0.0, 1.0, 0)),
        ({}, {}, (0.0, 1.0, 0)),
        ({}, {"top_k": 5}, (0.0, 1.0, 5)),
    ],
)
def test_what_a_call_leaves_open_is_the_models(
    generation: dict[str, Any], given: dict[str, Any], becomes: tuple[float, float, int]
) -> None:
    sampling = settled(Sampling(seed=3, **given), generation)
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == becomes
    assert sampling.seed == (3 if becomes[0] else None), "nothing is drawn at temperature 0"


@pytest.mark.engine
@pytest.mark.own_engine
@pytest.mark.parametrize("samples", [True, False])
async def test_an_engine_samples_as_its_model_says(tiny_model: Path, tmp_path: Path, samples: bool) -> None:
    folder = tmp_path / "own"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": samples, "temperature": 2.0}))
    texts: set[str] = set()
    async with opened(folder) as engine:
        for seed in range(3):
            think = ModelCall(prompt="w3 w4", sampling=Sampling(max_tokens=12, seed=seed))
            *_, last = [item async for item in engine.run(Job(attempt=seed + 1, run="r", step=f"r:{seed}", op=think))]
            assert isinstance(last, Result)
            texts.add(last.text)
    assert len(texts) == (3 if samples else 1)


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
async def test_an_engine_takes_the_fields_of_a_request_that_are_vllms_own(engine: Any) -> None:
    async def ended(**fields: Any) -> Any:
        think = ModelCall(prompt="w3 w4", sampling=Sampling(max_tokens=4, temperature=1.0, extra_body=fields))
        *_, last = [item async for item in engine.run(Job(attempt=1, run="r", step="r:a", op=think))]
        return last

    only = await ended(allowed_token_ids=[5], ignore_eos=True)
    assert only.token_ids == (5, 5, 5, 5)
    assert len((await ended(allowed_token_ids=[5], stop_token_ids=[5])).token_ids) <= 1
    assert (await ended(lora_path="x")).kind == "Rejected"
