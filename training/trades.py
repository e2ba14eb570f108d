"""What can be learned: where its traces come from, its words, and its tokenizer. A new trade is one entry here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from . import generate, vocab
from .arithmetic import generate as arithmetic, vocab as arithmetic_words
from .grpo import five
from .model import SIZES, ModelConfig
from .outline import generate as outline, vocab as outline_words
from .tables import generate as tables, vocab as table_words

MODELS = Path("packages/plait-models/plait_models/models")
SPECIAL = ("<pad>", "<unk>", "<end>")


@dataclass(frozen=True)
class Trade:
    """One trade. `draw` gives a trace of the training split; a trace's ids are places in `words`."""

    draw: Callable[[random.Random], generate.Trace]
    words: Sequence[str]
    tokenizer: Callable[[], Tokenizer]
    sizes: dict[str, ModelConfig]
    folders: dict[str, Path]
    steps: dict[str, int]
    """Of about 4,400 tokens."""
    report: str | None = None
    """Module of the function `report(model, count)`, which returns the tables of the model card as Markdown."""
    start: Path | None = None
    """Exported model whose weights training begins with."""
    chat_template: str | None = None

    def id(self, word: str) -> int:
        """Id of a word."""
        return self.words.index(word)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return tokenizer


def by_words(ids: Mapping[str, int] = vocab.ID) -> Tokenizer:
    """Words separated by white space, one token each; unknown words become `<unk>`."""
    tokenizer = Tokenizer(WordLevel(dict(ids), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_special(tokenizer)


def by_pieces(ids: Mapping[str, int], rules: Sequence[tuple[str, str]], pattern: str) -> Tokenizer:
    """Pieces of text with the spaces in them, the longest first; instructions are cut down to their marks before."""
    tokenizer = Tokenizer(WordLevel(dict(ids), unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(rule), mark) for rule, mark in rules])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _with_special(tokenizer)


# A user's message as it is; with tools, marked as such. Calls and results in Hermes' form.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}"
    "{{- ('<native>' if tools else '') + message.content + ('\\n' if tools else '') -}}"
    "{%- elif message.role == 'assistant' -%}"
    "{%- for call in message.tool_calls or [] -%}"
    '{{- \'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \' -}}'
    "{{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) -}}"
    "{{- '}</tool_call>\\n' -}}"
    "{%- endfor -%}{{- (message.content or '') + '<end>' -}}"
    "{%- elif message.role == 'tool' -%}{{- '<tool_response>' + message.content + '</tool_response>\\n' -}}"
    "{%- endif -%}{%- endfor -%}"
)

_TINY, _DRAFT = ModelConfig(d=64, layers=2, heads=2, ff=160), ModelConfig(d=96, layers=3, heads=3, ff=256)
_TABLES = {
    name: replace(size, vocab=len(table_words.WORDS), numbers=False)
    for name, size in {"tiny": _TINY, "draft": _DRAFT, **SIZES}.items()
}

TRADES: dict[str, Trade] = {
    "countdown": Trade(
        draw=generate.draw_trace, words=vocab.WORDS, tokenizer=by_words, sizes=SIZES,
        folders={"small": MODELS / "countdown", "large": MODELS / "countdown-large"},
        steps={"small": 16_000, "large": 8_500},
    ),
    "tables": Trade(
        draw=tables.draw_trace, words=table_words.WORDS,
        tokenizer=lambda: by_pieces(table_words.ID, table_words.RULES, table_words.PATTERN), sizes=_TABLES,
        folders={
            "tiny": MODELS / "tables-tiny", "draft": MODELS / "tables-draft",
            "small": MODELS / "tables", "large": MODELS / "tables-large",
        },
        steps={"tiny": 1_000, "draft": 2_300, "small": 6_000, "large": 8_500}, report="training.tables.evaluate",
        chat_template=CHAT_TEMPLATE,
    ),
    "arithmetic": Trade(
        draw=arithmetic.draw_trace, words=arithmetic_words.WORDS, tokenizer=lambda: by_words(arithmetic_words.ID),
        sizes={"small": SIZES["small"]}, folders={"small": MODELS / "arithmetic"}, steps={"small": 4_000},
        report="training.arithmetic.evaluate", start=MODELS / "countdown",
    ),
    "outline": Trade(
        draw=outline.draw_trace, words=outline_words.WORDS,
        tokenizer=lambda: by_pieces(outline_words.ID, outline_words.RULES, outline_words.PATTERN),
        sizes={"small": SIZES["small"]}, folders={"small": MODELS / "outline"}, steps={"small": 1_300},
        report="training.outline.evaluate", start=MODELS / "arithmetic", chat_template=CHAT_TEMPLATE,
    ),
    "five": Trade(
        draw=five.draw_trace, words=vocab.WORDS, tokenizer=by_words, sizes={"small": SIZES["small"]},
        folders={"small": Path("build/training/five-model")}, steps={"small": 700}, start=MODELS / "countdown",
    ),
}  # fmt: skip
