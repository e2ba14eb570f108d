"""Llamas that write the dialects' tags: their tokenizers have them, and their weights are such that each token is drawn
from a table by the one before it, with some random noise through attention and MLP.

Like `tests/workers/tiny_model.py` they are made anew for a test session; what they write makes no sense, but has the
forms of spawn lists, right and wrong ones: of tags (the default), or of the searches of APR (`APR`).
"""

from __future__ import annotations

import json
import math
import string
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from plait.planners.threads.threads.dialects import load

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


@dataclass(frozen=True)
class Language:
    """What a model knows and writes."""

    words: tuple[str, ...] = WORDS
    """Its vocabulary; the first two are padding and what is not known."""
    whole: tuple[str, ...] = TAGS
    """Words that the tokenizer finds first, the longest one at each place."""
    following: dict[str, list[str]] = field(default_factory=lambda: NEXT)
    other: tuple[str, ...] = tuple(OTHER)
    end: str | None = None
    """The end of a text."""


_CALL, _END_CALL, _WRONG = "<Calling Sub Searches>", "<End Calling Sub Searches>", "<Sub Searches>"
_CALLS = tuple(f"<Start Sub Search {n} at level 1> Moving to Node #" for n in range(3))
_MADE = (
    "0,0: 39:[31, 3, 4] Operation: 25+6=31",
    "0,1: 39:[19, 3, 4] Operation: 25-6=19",
    "0,2: 39:[150, 3, 4] Operation: 25*6=150",
)
_PATH = "\nMoving to Node #0,0,5\nCurrent State: 39:[31, 12], Operations: ['25+6=31', '4*3=12']\n39,39 equal: "
_GENERATED, _GOAL, _NONE, _JOINED = (
    "\nGenerated Node #",
    "Goal Reached",
    "\nNo solution found.\n",
    "<End Sub Searches>\n",
)
_SEARCHING = [_GENERATED] * 4 + ["\n" + _CALL, _CALL, _WRONG]
_WHOLE = (
    _CALL, "\n" + _CALL, _END_CALL, _WRONG, *_CALLS, _GENERATED, *_MADE, _PATH, _GOAL, _NONE, _JOINED, "[]", "']", "0,",
    "</s>", _GENERATED + _MADE[1],
)  # fmt: skip
APR = Language(
    words=("<pad>", "<unk>", *_WHOLE, "\n", *(each for each in string.printable if each.isprintable())),
    whole=_WHOLE,
    following={
        "[]": [_GENERATED],  # the parent begins
        "']": [_NONE, _PATH, _PATH],  # a thread begins
        _GENERATED: list(_MADE),
        **dict.fromkeys(_MADE, _SEARCHING),
        "\n" + _CALL: ["\n"],
        _CALL: ["\n"],
        "\n": [*_CALLS, *_CALLS, _END_CALL],
        **{call: ["0,"] for call in _CALLS},
        "0,": ["0", "1", "2", "3"],  # of the last one nothing is known
        **{digit: ["\n"] for digit in "0123"},
        _JOINED: [*_SEARCHING, _PATH, "</s>"],
        _PATH: [_GOAL],
        _GOAL: [_PATH, _PATH, "</s>"],
        _NONE: ["</s>"],
    },
    other=("</s>",),
    end="</s>",
)
"""Of Countdown searches. Two of its words are longer than what the model writes: a context that is tokenised anew
has other tokens."""


def build(folder: Path, seed: int = 0, language: Language = Language()) -> Path:
    """Write the model into a folder and return it."""
    words = language.words
    assert len(words) <= HIDDEN, len(words)
    folder.mkdir(parents=True, exist_ok=True)
    draw = torch.Generator().manual_seed(seed)

    def noise(rows: int, columns: int, scale: float = 0.02) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=draw) * scale).contiguous()

    ids = {word: place for place, word in enumerate(words)}
    embedding = torch.zeros(len(words), HIDDEN)
    head = torch.full((len(words), HIDDEN), -20.0)
    for word, place in ids.items():
        embedding[place, place] = 1.0
        following = language.following.get(word, language.other)
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
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(words), "hidden_size": HIDDEN,
        "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False,
        "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32", "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": None if language.end is None else ids[language.end],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "<unk>", *(AddedToken(each, normalized=False) for each in language.whole)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "pad_token": "<pad>",
        "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
        **({"eos_token": language.end} if language.end else {}),
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
