"""Words for tokens: cutting a text into them, and ending it as an engine would.

A token is a word with the white space before it.
"""

from __future__ import annotations

import itertools
import re
from typing import Literal

from plait.core.ops import Sampling

_WORD = re.compile(r"\s*\S+|\s+")


def words_of(text: str) -> list[str]:
    """Cut a text into tokens: words, each with the white space before it; white space at the end is one more."""
    return _WORD.findall(text)


def generated(text: str, sampling: Sampling) -> tuple[list[str], Literal["stop", "length"] | None]:
    """Return the texts of the tokens that are generated of `text`, and what ends them before its own end, if anything.

    A token limit ends it first, then the stop text that is complete first (of two that end together, the longer one).
    The token in which a stop text ends is generated, even if none of its text is kept.
    """
    words = words_of(text)
    tokens = words[: sampling.max_tokens]
    text = "".join(tokens)
    hits = [(start + len(stop), start) for stop in sampling.stop if stop and (start := text.find(stop)) >= 0]
    if not hits:
        return tokens, "length" if len(tokens) < len(words) else None
    end, start = min(hits)
    keep = end if sampling.keep_stop else start
    kept: list[str] = []
    for token, begin in zip(tokens, itertools.accumulate(map(len, tokens), initial=0), strict=False):
        if begin >= end:
            break
        kept.append(token[: max(0, keep - begin)])
    return kept, "stop"
