"""The random Llama with a byte-level tokenizer and an end token, and LoRA adapters of it, written by hand.

Its tokens are bytes, so forms of any kind can be asked of it, and characters come in halves.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from .tiny_model import HIDDEN, LAYERS, build

END = "<end>"


def build_bytes(folder: Path, seed: int = 0) -> Path:
    """Write the model into a folder and return it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    build(folder, seed, vocabulary=len(letters) + 1)
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"], settings["unk_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": END, "pad_token": END}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": len(letters), "pad_token_id": 0}))
    return folder


def build_lora(folder: Path, seed: int, rank: int = 4) -> Path:
    """Write a random adapter of the model into a folder, as `peft` writes one, and return it."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            weights[f"{at}lora_A.weight"] = torch.randn(rank, HIDDEN, generator=draw) * 0.3
            weights[f"{at}lora_B.weight"] = torch.randn(HIDDEN, rank, generator=draw) * 0.3
    save_file(weights, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
