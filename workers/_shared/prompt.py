"""How the pieces of a prompt become token ids, and which token ids end an output, with a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from plait.core.plan import Text, Think, Tokens

from .function_calls import function

TAIL = 16
"""Tokens of a prompt that are decoded with what follows, to see how the latter's text begins."""


class Stops(NamedTuple):
    """What ends an output: token ids that the engine compares, and texts that it looks for."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]


class Prompter:
    """A tokenizer with the rules by which prompts and stop texts are put to it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._fast: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._encode = lru_cache(maxsize=1024)(self._encode_uncached)
        self.stops = lru_cache(maxsize=256)(self._stops)

    def ids(self, think: Think) -> list[int]:
        """Return the token ids of a resolved prompt.

        Text that opens the prompt is tokenised as the tokenizer does by default (with its opening special token, if it
        has one), later text without. Token ids pass untouched. With `chat` and a chat template, the whole prompt is one
        user message, and `begin` the start of the model's turn; without a template both are plain text.
        """
        if think.chat and getattr(self.tokenizer, "chat_template", None):
            content = "".join(self._text_of(part) for part in think.prompt)
            message = [{"role": "user", "content": content}]
            functions: dict[str, Any] = {"tools": [function(each) for each in think.tools]} if think.tools else {}
            text = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False, **functions)
            return list(self._encode_uncached(text + think.begin, False))
        out: list[int] = []
        for place, part in enumerate(think.prompt):
            match part:
                case Tokens(ids=ids, within=None):
                    out += ids
                case Tokens(ids=ids, within=str(text)):
                    out += self.cut(ids, text)
                case Text(text=text):
                    encode = self._encode if len(text) <= 4096 else self._encode_uncached
                    out += encode(text, place == 0)
                case _:
                    raise ValueError(f"a worker's prompt holds only text and tokens, not {part.kind!r}")
        if think.begin:
            out += self._encode(think.begin, False)
        return out

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens included, as the engine decodes it: without the cleaning up of
        spaces that some tokenizers are set to."""
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=False)
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def after(self, context: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of `ids` as it goes on after `context`."""
        tail = context[-TAIL:]
        head, whole = self.text(tail), self.text([*tail, *ids])
        return whole[len(head) :] if whole.startswith(head) else self.text(ids)

    def decodes_late(self, context: Sequence[int]) -> bool:
        """Whether the text of an output can be decoded at its end, all at once: not where the context ends within a
        character, nor with tokenizers that are not known to decode as the engine does."""
        return self._fast is not None and not self.text(context[-TAIL:]).endswith("\ufffd")

    def within(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the longest start of `ids` whose text lies within `text`: of an output that was cut before a stop
        text, the tokens with no part in that stop text."""
        bare = text.lstrip()  # some tokenizers drop the first space when they decode
        for length in range(len(ids), 0, -1):
            piece = self.text(ids[:length])
            if text.startswith(piece) or bare.startswith(piece):
                return list(ids[:length])
        return []

    def cut(self, ids: Sequence[int], text: str) -> list[int]:
        """Return the ids of `text`, with which the text of `ids` begins: as many of the ids as lie within it, then what
        is left of it tokenised."""
        low, high = 0, len(ids)
        while low < high:  # the text of the ids grows with their number
            middle = (low + high + 1) // 2
            low, high = (middle, high) if len(self.text(ids[:middle])) <= len(text) else (low, middle - 1)
        kept = self.within(ids[:low], text)
        said = self.text(kept)
        whole = (
            text if text.startswith(said) else text.lstrip()
        )  # some tokenizers drop the first space when they decode
        rest = whole[len(said) :]
        return kept + list(self._encode_uncached(rest, False)) if rest else kept

    def _text_of(self, part: Any) -> str:
        return self.text(part.ids) if isinstance(part, Tokens) else part.text

    def _encode_uncached(self, text: str, opening: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=opening))

    def _stops(self, stop: tuple[str, ...]) -> Stops:
        """Sort stop texts into token ids and texts to look for.

        A text that is one token becomes that token's id, for the engine stops on an id at once and without holding
        text back. It is still looked for as text, unless it is an added token or a word of a word-level vocabulary:
        those come as that token or not at all, while "\\n" may also come inside another token.
        """
        ids: list[int] = []
        texts: list[str] = []
        for text in stop:
            alone = self.tokenizer.encode(text, add_special_tokens=False)
            single = len(alone) == 1 and self.text(alone) == text
            if single:
                ids.append(alone[0])
            if not single or not self._whole_words(text):
                texts.append(text)
        return Stops(tuple(ids), tuple(texts))

    def _whole_words(self, text: str) -> bool:
        if text in self.tokenizer.get_added_vocab():
            return True
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return type(getattr(backend, "model", None)).__name__ == "WordLevel"
