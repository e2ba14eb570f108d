"""Turns a GGUF file of the Llama family into a model folder that vLLM loads: `config.json`, tokenizer, safetensors.

llama.cpp keeps the rows of the query and key projections in another order, for its own rotary embedding: a head's rows
are interleaved halves. They are put back here, as transformers' converter has it the other way round. Weights are
dequantized and written as bfloat16.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["INSTALL", "convert"]

INSTALL = "pip install 'plait[gguf]'"
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_WANTED = ("general.architecture", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")
"""Fields that are read, besides those of the kind `llama`: the lists of tokens are long."""
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(file: Path, folder: Path) -> None:
    """Write a model folder made of a GGUF file.

    Raises `UsageError` for a file that is no GGUF file of a Llama model, and where a library is missing.
    """
    try:
        import gguf
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise UsageError(f"reading a GGUF file needs {error.name}: {INSTALL}") from None
    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    try:
        reader = gguf.GGUFReader(file)
        fields = {
            name: reader.fields[name].contents() for name in reader.fields if name in _WANTED or name[:6] == "llama."
        }
        config = config_of(fields, [tensor.name for tensor in reader.tensors])
    except UsageError:
        raise
    except Exception as error:  # the library raises whatever it stumbles over
        raise UsageError(f"{file} is no GGUF file that can be read: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(reader, config, folder / "model.safetensors")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    # Last: a folder without it is none, so a conversion that was interrupted is not taken for a model.
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def config_of(fields: dict[str, Any], tensors: list[str]) -> dict[str, Any]:
    """Return transformers' configuration of a GGUF file's fields. Raises `UsageError` for another kind of model."""
    kind = fields.get("general.architecture")
    if kind != "llama":
        raise UsageError(f"the file holds a model of the kind {kind!r}: only the Llama family can be converted")
    unknown = [name for name in tensors if _name(name) is None]
    if unknown:
        raise UsageError(f"the file has tensors that a plain Llama has not ({', '.join(unknown[:3])}, …)")

    def get(name: str, default: Any = None) -> Any:
        return fields.get(f"llama.{name}", default)

    heads, hidden = get("attention.head_count"), get("embedding_length")
    if not heads or not hidden or not get("block_count"):
        raise UsageError("the file does not say how large its model is (block_count, embedding_length, head_count)")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", hidden // heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": round(get("attention.layer_norm_rms_epsilon", 1e-5), 9),
        "rope_theta": get("rope.freq_base", 10000.0),
        "vocab_size": get("vocab_size"),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }


def _name(tensor: str) -> str | None:
    """Return a tensor's name in transformers; `None` for one that a plain Llama has not."""
    stem, _, kind = tensor.rpartition(".")
    if kind != "weight":
        return None
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.weight"
    match stem.split("."):
        case ["blk", number, part] if part in _PARTS:
            return f"model.layers.{number}.{_PARTS[part]}.weight"
        case _:
            return None


def _write_weights(reader: Any, config: dict[str, Any], file: Path) -> None:
    """Write the weights as safetensors, a tensor at a time, so that a large model needs little memory: the length of
    the header (8 bytes), the header as JSON, the numbers (https://github.com/huggingface/safetensors#format)."""
    from gguf.quants import dequantize

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]  # GGUF names the fastest dimension first
        start, end = end, end + 2 * math.prod(shape)
        header[_name(tensor.name) or ""] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for tensor in reader.tensors:
            weights = dequantize(tensor.data, tensor.tensor_type)
            if tensor.name.endswith("attn_q.weight"):
                weights = unpermuted(weights, config["num_attention_heads"])
            elif tensor.name.endswith("attn_k.weight"):
                weights = unpermuted(weights, config["num_key_value_heads"])
            target.write(bfloat16(weights))


def unpermuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Return a projection's rows (heads × size of a head, columns) in transformers' order.

    >>> import numpy as np
    >>> unpermuted(np.arange(4.0).reshape(4, 1), heads=1).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16(weights: np.ndarray) -> bytes:
    """Return numbers as bfloat16, little-endian, rounded to the nearest, ties to even.

    >>> import numpy as np
    >>> bfloat16(np.array([1.0, -2.0], dtype="float32")).hex()
    '803f00c0'
    """
    import numpy as np

    bits = np.ascontiguousarray(weights, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
