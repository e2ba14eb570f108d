"""The tool `reward` against real vLLM servers of small random models with a head of classes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from plait.workers.tools.reward import reward_model

from ..byte_model import build_bytes
from ..vllm_server import vllm_process

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(400)]

TEXTS = ("<none>", "3 + 4 = 7 ; 7 * 2 = 14", "a b c")


def with_head(folder: Path, labels: int) -> Path:
    """Give the model of bytes a head that tells classes in the place of tokens."""
    build_bytes(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    config["id2label"] = {str(i): f"label-{i}" for i in range(labels)}
    config["label2id"] = {f"label-{i}": i for i in range(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    draw = torch.Generator().manual_seed(5)
    weights["score.weight"] = torch.randn(labels, config["hidden_size"], generator=draw).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def expected(folder: Path, text: str) -> float:
    """Return what the model says by transformers: the probability of the last class."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(text)])).logits[0]
    return float(torch.softmax(logits, 0)[-1])


def waited(address: str, process, log: Path) -> None:
    while True:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(f"{address}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)


async def test_a_served_classifier_says_what_its_weights_say(tmp_path: Path) -> None:
    folder, log = with_head(tmp_path / "model", 2), tmp_path / "server.log"
    with vllm_process(folder, "judge", log, runner="pooling", dtype="float32") as (address, process):
        waited(address, process, log)
        tool = reward_model("judge", base_url=f"{address}/v1")
        said = [await tool.fn(text=text) for text in TEXTS]
    assert said == pytest.approx([expected(folder, text) for text in TEXTS], abs=0.01)
    assert len({round(each, 3) for each in said}) > 1, "texts are told apart"
