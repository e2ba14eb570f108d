"""Long prompts: made once for all calls that share them, and tokenised in pieces, of which only new ones are encoded.

Pieces begin with a special token. A fast tokenizer splits a text at those tokens first and encodes what lies between
two of them alone, so the ids of the pieces, joined, are the ids of the text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from plait.core.ops import ModelCall, Text, Tokens

PIECE_CHARS = 4096
"""Minimum number of characters in a piece, except the last of a text."""
OFFLOAD_CHARS = 2000
"""Characters from which a prompt is made in a thread, so that it does not block the loop."""


@dataclass(frozen=True, slots=True)
class PromptKey:
    """Identifies the prompt of a call."""

    call: ModelCall = field(compare=False)
    """Kept, so that nothing else gets an identity that the key contains."""
    identity: Hashable


def prompt_key(call: ModelCall) -> PromptKey:
    """Return a call's key: its messages, functions and token ids are compared by identity, as they are long and samples
    share them."""
    sampling = call.sampling
    parts = [
        part.text if isinstance(part, Text) else (id(part.ids), part.within) if isinstance(part, Tokens) else id(part)
        for part in (*call.context, None, *call.prompt)
    ]
    options = (call.tool_choice, repr(sampling.chat_template_kwargs), sampling.reasoning_effort)
    shared = (*map(id, call.messages), None, *map(id, call.tools))
    return PromptKey(call, (call.chat, call.begin, call.heard, options, shared, *parts))


def is_long(call: ModelCall) -> bool:
    """Whether a prompt is to be made in a thread."""
    size = sum(len(function.description) for function in call.tools)
    for part in (*call.prompt, *call.context):
        size += len(part.text) if isinstance(part, Text) else len(part.ids) if isinstance(part, Tokens) else 0
    for message in call.messages:
        if size >= OFFLOAD_CHARS:
            break
        size += len(message.text)
    return size >= OFFLOAD_CHARS


def split(text: str, before: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the pieces of a text. A text that continues it begins with the same ones, except the last."""
    begin = 0
    while before is not None and (match := before.search(text, begin + PIECE_CHARS)) is not None:
        yield text[begin : match.start()]
        begin = match.start()
    yield text[begin:]


def find_split_tokens(tokenizer: Any, template: str) -> list[str]:
    """Return the special tokens of a chat template before which a text may be split without a change of its ids."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        return []
    # The first encoding turns the tokenizer's truncation off, which must not happen while another thread uses it.
    tokenizer.encode("", add_special_tokens=False)
    # Tokens with `normalized` are found later, in each piece alone. `lstrip` and `single_word` depend on the character
    # before the token.
    added = [token for token in fast.get_added_tokens_decoder().values() if not token.normalized]
    named = [each.content for each in added if not (each.lstrip or each.single_word) and each.content in template]
    safe = [token for token in named if not any(_hides(each.content, token) for each in added)]
    return [token for token in safe if _is_split(tokenizer, token)]


def _hides(other: str, token: str) -> bool:
    """Whether an occurrence of `other` may begin before one of `token` and overlap it."""
    return token in other[1:] or any(token.startswith(other[begin:]) for begin in range(1, len(other)))


def _is_split(tokenizer: Any, token: str) -> bool:
    """Whether an example is split before a token: a tokenizer may prepare texts in a way of its own."""
    pieces = ["A b \n", f"{token}c d. ", f"{token}\n e"]
    whole, *ids = (tokenizer.encode(text, add_special_tokens=False) for text in ("".join(pieces), *pieces))
    return whole == [id_ for piece in ids for id_ in piece]
