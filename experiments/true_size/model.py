"""A model folder of the shape of Llama-3-8B, without its weights: vLLM fills them with `load_format=dummy`.

The configuration has the published sizes. The tokenizer is made here: the 256 bytes, and one made-up word for each
other id, so that every id has a text. What such a model writes means nothing; its steps take as long as those of a
real one.
"""

from __future__ import annotations

import json
from pathlib import Path

VOCABULARY = 128_256
CONTEXT = 8_192
CHAT = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": VOCABULARY - 1,
    "torch_dtype": "bfloat16",
}
"""Sizes of Meta-Llama-3-8B's config.json."""


def write_model(folder: Path, layers: int = 32) -> Path:
    """Write configuration and tokenizer of a model with this number of `layers` into `folder`; return the folder."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"w{number}" for number in range(len(alphabet), VOCABULARY - 1)), "<end>"]
    tokenizer = Tokenizer(BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "model_max_length": CONTEXT,
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({**LLAMA_3_8B, "num_hidden_layers": layers}), encoding="utf-8")
    return folder
