"""Small random reward models, and what transformers says of them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from .byte_model import build_bytes

TEXTS = ("<none>", "3 + 4 = 7 ; 7 * 2 = 14", "a b c")


def with_head(folder: Path, labels: int, weight: float = 1.0) -> Path:
    """Give the model of bytes a head that tells classes in the place of tokens, its random numbers times `weight`."""
    build_bytes(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["LlamaForSequenceClassification"]
    config["id2label"] = {str(i): f"label-{i}" for i in range(labels)}
    config["label2id"] = {f"label-{i}": i for i in range(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    draw = torch.Generator().manual_seed(5)
    head = torch.randn(labels, config["hidden_size"], generator=draw) * weight
    weights["score.weight"] = head.to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def logits(folder: Path, text: str) -> list[list[float]]:
    """Return what the head says at each token, by transformers; shape (tokens, labels)."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0]
        return model.score(hidden).tolist()


def numbers(folder: Path, ids: list[int], head: bool) -> list[list[float]]:
    """Return what the model says at each of some token ids: its head's numbers, or logits of the next token."""
    kind = AutoModelForSequenceClassification if head else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        return (model.score if head else model.lm_head)(hidden).tolist()


def probability(folder: Path, text: str) -> float:
    """Return the probability of the last class at the last token; of one class alone its sigmoid."""
    said = torch.tensor(logits(folder, text)[-1])
    return float(torch.sigmoid(said)[0] if len(said) == 1 else torch.softmax(said, 0)[-1])
