"""The agent of 400 turns: what it reads, what it says, and how its tokens are counted. Knows no framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

PAGES, CONTEXT, THRESHOLD, KEEP = 400, 8192, 6000, 3
CODES = {page: f"code-{page * 7919 % 9973:04d}" for page in range(20, PAGES, 40)}
"""Ten pages have a code that the answer must name."""
THOUGHT = "I have read this page and see what is on it, so I take the one after it next. " * 2
QUESTION = "Read all pages and name all codes."


def page_text(page: int) -> str:
    """Return a page: some 120 words."""
    return f"page {page} of {PAGES}: {CODES.get(page, 'nothing')} " + "lorem ipsum dolor " * 38


def codes_in(text: str) -> list[str]:
    """Return the codes of a text, in order."""
    return list(dict.fromkeys(re.findall(r"code-\d{4}", text)))


def last_page(text: str) -> int:
    """Return the last page that a context mentions, 0 for none."""
    return max(map(int, re.findall(rf"page (\d+) of {PAGES}", text)), default=0)


def summary_of(text: str) -> str:
    """Return a summary that loses nothing of what it reads."""
    return f"Read up to page {last_page(text)} of {PAGES}. Codes so far: {', '.join(codes_in(text)) or 'none'}."


def words(text: str) -> list[str]:
    """Return a text's tokens: words, each with the white space before it."""
    return re.findall(r"\s*\S+", text)


@dataclass
class Meter:
    """Tokens read, found in a prefix cache that forgets nothing, and written."""

    prompt: int = 0
    cached: int = 0
    written: int = 0
    calls: int = 0
    summaries: int = 0
    largest: int = 0
    tree: dict[str, dict] = field(default_factory=dict)

    def count(self, prompt: str, answer: str, summary: bool = False) -> None:
        """Count one model call."""
        tokens = words(prompt)
        self.prompt, self.calls, self.largest = (
            self.prompt + len(tokens),
            self.calls + 1,
            max(self.largest, len(tokens)),
        )
        self.cached += self._add(tokens)
        self._add(words(prompt + answer))
        self.written += len(words(answer))
        self.summaries += summary

    def _add(self, tokens: Sequence[str]) -> int:
        node, shared, known = self.tree, 0, True
        for token in tokens:
            known = known and token in node
            shared += known
            node = node.setdefault(token, {})
        return shared

    def row(self, what: str, answer: str | None) -> dict[str, object]:
        """Return the row of one contender."""
        kept = len(codes_in(answer or ""))
        counts = {
            name: getattr(self, name) for name in ("calls", "summaries", "largest", "prompt", "cached", "written")
        }
        computed = self.prompt - self.cached
        return {"what": what, "answered": answer is not None, "codes": kept, **counts, "computed": computed}
