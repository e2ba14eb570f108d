"""A classifier of random weights, served by vLLM in a process of its own, against transformers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from plait.core.errors import EngineError, ToolError
from plait.workers.engine import Pooling
from plait.workers.tools.reward import reward_engine

from ..tiny_model import HIDDEN, build


def classifier(folder: Path) -> Path:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(str(build(folder) / "model.safetensors"))
    del weights["lm_head.weight"]
    weights["score.weight"] = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(3)) * 0.5
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 2}
    config |= {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.engine
@pytest.mark.timeout(400)
async def test_a_classifier_gives_the_probability_of_its_label(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = classifier(tmp_path / "model")
    texts = ["w1 w2 w3", "w4 w5", "w9 w8 w7 w6", "w1"]
    reward = reward_engine(str(folder), max_model_len=64, kv_cache_memory_bytes=64 << 20)
    found = await asyncio.gather(*(reward(text=text) for text in texts))
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text, value in zip(texts, found, strict=True):
        with torch.no_grad():
            expected = torch.softmax(model(torch.tensor([tokenizer.encode(text)])).logits, -1)[0, 1].item()
        assert value == pytest.approx(expected, abs=0.02)  # it may compute in bfloat16
    assert max(found) - min(found) > 0.1
    with pytest.raises(ToolError, match="cannot score this text"):
        await reward(text="w1 " * 500)
    assert await reward(text=texts[0]) == pytest.approx(found[0], abs=0.02), "it goes on"


async def test_a_model_that_is_not_there_is_said() -> None:
    with pytest.raises(EngineError, match="there is no model"):
        await Pooling("no-such-model").scores("x")
