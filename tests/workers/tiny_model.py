"""A Llama of random weights with a word-level tokenizer, small enough to make anew for a test session.

It says nothing sensible, but vLLM runs it as it runs any model, and its vocabulary has control words like `<wait>`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

WORDS = ["<pad>", "<unk>", "<end>", "<spawn>", "<wait>", "<join>", *(f"w{n}" for n in range(250))]
HIDDEN, LAYERS, HEADS, FF, CONTEXT = 64, 2, 2, 128, 512


def build(folder: Path, seed: int = 0, vocabulary: int = len(WORDS)) -> Path:
    """Write the model into a folder and return it. With another `vocabulary` its tokenizer is to be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=draw) * scale).contiguous()

    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, HIDDEN, 1.0),
        "lm_head.weight": matrix(vocabulary, HIDDEN, 0.3),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {f"{at}self_attn.{name}_proj.weight": matrix(HIDDEN, HIDDEN, 0.1) for name in "qkvo"}
        weights |= {f"{at}mlp.{name}_proj.weight": matrix(FF, HIDDEN, 0.1) for name in ("gate", "up")}
        weights[at + "mlp.down_proj.weight"] = matrix(HIDDEN, FF, 0.1)
        weights[at + "input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[at + "post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": HIDDEN,
        "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32", "pad_token_id": 0,
        # no end of text: how long it generates is the test's choice
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<unk>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "pad_token": "<pad>",
        "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
