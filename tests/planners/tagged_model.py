"""A Llama that writes the dialects' tags: its tokenizer has them, and its weights are such that each token is drawn
from a table by the one before it, with some random noise through attention and MLP.

Like `tests/contract/tiny_model.py` it is made anew for a test session; what it writes makes no sense, but has the forms
of spawn lists, right and wrong ones.
"""

from __future__ import annotations

import json
import math
import string
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from planners.dialects import load

DIALECTS = ("threadweaver-conclusion", "multiverse", "parallel-r1", "npr")
TAGS = tuple(dict.fromkeys(tag for name in DIALECTS for tag in load(name).tags))
WORDS = ("<pad>", "<unk>", *TAGS, "\n", *(each for each in string.printable if each.isprintable()))
HIDDEN, LAYERS, HEADS, FF, CONTEXT = 128, 1, 2, 128, 4096

ENDS = ["</Thread>", "</Path>", "</step>"]
OTHER = ["<Parallel>", "<guideline>", *ENDS, "b"]
NEXT: dict[str, list[str]] = {
    "<Parallel>": ["<Outlines>", "<Goal>"],
    "<Outlines>": ["<Outline>"],
    "<Goal>": ["<Outline>"],
    "<guideline>": ["<plan>"],
    "<Outline>": ["1", "2", "3"],
    "<plan>": ["1", "2", "3"],
    "1": [":"],
    "2": [":"],
    "3": [":"],
    ":": ["c"],
    "c": ["</Outline>", "</Outline>", "</plan>", "</plan>", *ENDS],
    "</Outline>": ["<Outline>"] * 4 + ["</Outlines>", "</Goal>"],
    "</plan>": ["<plan>"] * 4 + ["</guideline>"] * 2,
    "\n": ["</Parallel>", *OTHER],
}
"""What may follow a token, each as likely as the others; after all others comes one of `OTHER`."""


def build(folder: Path, seed: int = 0) -> Path:
    """Write the model into a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)

    def noise(rows: int, columns: int, scale: float = 0.02) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=draw) * scale).contiguous()

    ids = {word: place for place, word in enumerate(WORDS)}
    embedding = torch.zeros(len(WORDS), HIDDEN)
    head = torch.full((len(WORDS), HIDDEN), -20.0)
    for word, place in ids.items():
        embedding[place, place] = 1.0
        following = NEXT.get(word, OTHER)
        for each in set(following):
            head[ids[each], place] = math.log(following.count(each))
    weights = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": (head / math.sqrt(HIDDEN)).contiguous(),  # the last norm makes a 1 of 128 figures √128
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {f"{at}self_attn.{name}_proj.weight": noise(HIDDEN, HIDDEN) for name in "qkvo"}
        weights |= {f"{at}mlp.{name}_proj.weight": noise(FF, HIDDEN) for name in ("gate", "up")}
        weights[at + "mlp.down_proj.weight"] = noise(HIDDEN, FF)
        weights[at + "input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[at + "post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(WORDS), "hidden_size": HIDDEN,
        "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32", "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "<unk>", *map(AddedToken, TAGS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "pad_token": "<pad>",
        "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
