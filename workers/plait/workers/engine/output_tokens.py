"""The tokens of an output in words, with their log-probabilities and those of the likeliest beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.core.result import Token

from .._shared.prompt import TAIL, Prompter

LEAST = -9999.0
"""The log-probability that stands for none, as OpenAI has it."""


def spelled(prompter: Prompter, context: Sequence[int], rows: Sequence[Any], text: str) -> tuple[Token, ...]:
    """Return the tokens that spell an output's text; none if they do not.

    `context` are the ids before them. `rows` are pairs of arrays of shape (tokens, 1 + most): ids and log-probabilities
    (nats, at temperature 1), the generated token's first, then those of the likeliest. A token that ends within a
    character has no text, and the one that completes it has the whole character. The last is cut where the text is.
    """
    ids = list(context[-TAIL:])
    begin, known = 0, len(ids)
    told: list[Token] = []
    left = text
    for places, scores in (row for pair in rows for row in zip(*(array.tolist() for array in pair), strict=True)):
        if not left:
            break
        before = prompter.text(ids[begin:known])
        words = [_added(prompter, before, [*ids[begin:], place]) for place in places]
        near = [max(LEAST, min(0.0, score)) for score in scores]
        word = words[0][: len(left)]
        if not left.startswith(word):
            return ()
        left = left[len(word) :]
        told.append(Token(text=word, logprob=near[0], top=tuple(zip(words[1:], near[1:], strict=True))))
        ids.append(places[0])
        if word:
            begin, known = known, len(ids)
    return () if left else tuple(told)


def _added(prompter: Prompter, before: str, ids: Sequence[int]) -> str:
    """Return what the last of some ids adds to the text of those before it."""
    text = prompter.text(ids)
    if text.endswith("\ufffd"):
        return ""
    return text[len(before) :] if text.startswith(before) else prompter.text(ids[-1:])
