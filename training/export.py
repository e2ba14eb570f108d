"""Writes the trained model as a folder that Hugging Face's transformers and vLLM load by path: weights,
config, tokenizer.

Weights are stored in bfloat16 (training multiplies in bfloat16 too, so nothing is lost in the matrices).
Files are written beside their place and renamed, so that a reader never sees half a file. A model card that is
there stays as it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .model import Block, Llama, ModelConfig, parameter_count
from .task import MAX_NUMBER, MAX_TARGET, MIN_NUMBER, MIN_TARGET
from .trades import TRADES, Trade

COUNTDOWN = TRADES["countdown"]


def hf_config(config: ModelConfig, trade: Trade = COUNTDOWN) -> dict[str, Any]:
    """config.json of the exported model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.d,
        "intermediate_size": config.ff,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.d // config.heads,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pad_token_id": trade.id("<pad>"),
        "bos_token_id": None,
        "eos_token_id": trade.id("<end>"),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def hf_weights(model: Llama) -> dict[str, Tensor]:
    """The weights under the names of LlamaForCausalLM, bfloat16; the head is the embedding (tied)."""
    out: dict[str, Tensor] = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = block.attention_norm
        out[at + "post_attention_layernorm.weight"] = block.mlp_norm
        for name, weight in zip("qkv", block.qkv, strict=True):
            out[f"{at}self_attn.{name}_proj.weight"] = weight
        out[at + "self_attn.o_proj.weight"] = block.o
        for name, weight in zip(("gate", "up"), block.gate_up, strict=True):
            out[f"{at}mlp.{name}_proj.weight"] = weight
        out[at + "mlp.down_proj.weight"] = block.down
    return {name: w.detach().to("cpu", torch.bfloat16).clone().contiguous() for name, w in out.items()}


def tokenizer_config(context: int, trade: Trade = COUNTDOWN) -> dict[str, Any]:
    """tokenizer_config.json."""
    chat = {"chat_template": trade.chat_template} if trade.chat_template else {}
    return {
        **chat,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "padding_side": "left",
    }


def export(model: Llama, folder: Path, facts: dict[str, Any] | None = None, trade: Trade = COUNTDOWN) -> None:
    """Write the model folder; `facts` (tokens, seconds, …) are kept beside it in training.json."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing-{os.getpid()}"
    temporary.mkdir()
    texts: dict[str, Any] = {
        "config.json": hf_config(model.config, trade),
        "generation_config.json": {
            "eos_token_id": trade.id("<end>"),
            "pad_token_id": trade.id("<pad>"),
            "do_sample": False,
        },
        "tokenizer_config.json": tokenizer_config(model.config.context, trade),
    }
    if facts is not None:
        texts["training.json"] = facts
    for name, content in texts.items():
        (temporary / name).write_text(json.dumps(content, indent=2) + "\n")
    trade.tokenizer().save(str(temporary / "tokenizer.json"))
    save_file(hf_weights(model), str(temporary / "model.safetensors"), metadata={"format": "pt"})
    for path in sorted(temporary.iterdir()):
        path.chmod(0o644)  # safetensors writes for the owner alone; a package is read by others
        os.replace(path, folder / path.name)
    temporary.rmdir()


def write_card(model: Llama, folder: Path, command: str, facts: dict[str, Any], marks: tuple[str, str]) -> bool:
    """Write a model card if it is missing: what the model is and how it came about, and between the marks the place
    of its table of results. Return whether one was written."""
    card = folder / "README.md"
    if card.exists():
        return False
    config = model.config
    card.write_text(
        f"# {folder.name}\n\n"
        f"A Llama of {parameter_count(model) / 1e6:.1f} million parameters ({config.layers} layers, width {config.d}, "
        f"{config.heads} heads, context {config.context:,} tokens; bfloat16) that plays Countdown: reach a target "
        f"{MIN_TARGET}..{MAX_TARGET} from four numbers {MIN_NUMBER}..{MAX_NUMBER} with `+ - * /`, each used once. "
        "Words and modes are those of `training/FORMAT.md` of the source repository.\n\n"
        f"`{command}` (seed {facts['seed']}, {facts['steps']:,} steps): {facts['tokens'] / 1e6:.1f} million tokens in "
        f"{facts['seconds'] / 60:.0f} minutes. No problem of the test split, "
        '`zlib.crc32(",".join(map(str, sorted(numbers))).encode()) % 10 == 0`, was trained on, with any target.\n\n'
        "Held-out problems; *solved* is exact arithmetic with all four numbers used once, checked by a program. 95 % "
        "Wilson intervals. Tokens are generated tokens, means over problems.\n\n"
        f"{marks[0]}\n{marks[1]}\n\n"
        "Licence: as the source repository (Apache 2.0). Training data: generated by its code, nothing else.\n",
        encoding="utf-8",
    )
    return True


def load(folder: Path, device: torch.device | None = None) -> Llama:
    """The exported model as our own network, in float32."""
    raw = json.loads((folder / "config.json").read_text())
    config = ModelConfig(
        d=raw["hidden_size"], layers=raw["num_hidden_layers"], heads=raw["num_attention_heads"],
        ff=raw["intermediate_size"], context=raw["max_position_embeddings"], rope_theta=raw["rope_theta"],
        eps=raw["rms_norm_eps"], vocab=raw["vocab_size"],
    )  # fmt: skip
    model = Llama(config)
    weights = {name: w.float() for name, w in load_file(str(folder / "model.safetensors")).items()}
    with torch.no_grad():
        model.embedding.copy_(weights["model.embed_tokens.weight"])
        model.norm.copy_(weights["model.norm.weight"])
        for i, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            at = f"model.layers.{i}."
            block.attention_norm.copy_(weights[at + "input_layernorm.weight"])
            block.mlp_norm.copy_(weights[at + "post_attention_layernorm.weight"])
            block.qkv.copy_(torch.stack([weights[f"{at}self_attn.{n}_proj.weight"] for n in "qkv"]))
            block.o.copy_(weights[at + "self_attn.o_proj.weight"])
            block.gate_up.copy_(torch.stack([weights[f"{at}mlp.{n}_proj.weight"] for n in ("gate", "up")]))
            block.down.copy_(weights[at + "mlp.down_proj.weight"])
    return model.to(device or torch.device("cpu"))
