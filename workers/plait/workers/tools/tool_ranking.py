"""Ranks tools for a query that may ask for several: sentence by sentence, services before their tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_END = re.compile(r"(?<=[.?!])\s+")
_LEAST = 9
"""Characters of a sentence that says something."""
_CHARACTERS = 1200
"""Of a service's text: more than that an embedding model of this kind does not read."""
Scores = Callable[[str], Any]
"""Returns a number for each text, of how well it fits a query's words."""


def sentences(query: str) -> list[str]:
    """Return a query's sentences; the whole query if it has none of some length.

    >>> sentences("I am bored. Find a film for me! And a cinema near by?")
    ['I am bored.', 'Find a film for me!', 'And a cinema near by?']
    """
    return [part for part in _END.split(query) if len(part) >= _LEAST] or [query]


def service_text(name: str, texts: Sequence[str]) -> str:
    """Return the search text of a service: its name, and the beginnings of its tools' texts."""
    return f"{name}: {'. '.join(texts)}"[:_CHARACTERS]


class SentenceRanking:
    """Ranks by the chance that any sentence asks for a tool.

    A sentence's scores are those of services (its own words and vector, and less those of the whole query) and of
    tools, each in deviations from their mean. A softmax makes chances of them, so that a sentence that asks for nothing
    speaks for nothing, and the chances of the sentences are put together as if they were independent. The weights are
    round numbers near those that fit half of ToolBench's questions (`python -m experiments toolbench`).
    """

    def __init__(self, services: Sequence[Sequence[int]], service_words: Scores, tool_words: Scores) -> None:
        """Args: services: the places of each one's tools."""
        self.of = {place: at for at, members in enumerate(services) for place in members}
        """The service of each tool."""
        self.service_scores, self._tool_words = service_words, tool_words

    def scores(self, query: str, vectors: Any = None, services: Any = None, tools: Any = None) -> Any:
        """Return a chance for each tool. `vectors`: a row of length 1 for the query and one for each of its sentences;
        `services` and `tools`: the rows of these."""
        import numpy as np

        parts = sentences(query)
        service = 0.5 * self._words(self.service_scores, parts) + 0.4 * self._words(self.service_scores, [query])
        tool = 0.3 * self._words(self._tool_words, parts)
        if vectors is None:
            service, tool = 2 * service, 3 * tool
        else:
            service = service + _deviations(vectors[1:] @ services.T) + 0.7 * _deviations(vectors[:1] @ services.T)
            tool = tool + _deviations(vectors[1:] @ tools.T)
        of = np.array([self.of[place] for place in range(len(self.of))])
        both = service[:, of] + 0.25 * tool
        odds = np.exp(both - both.max(axis=1, keepdims=True))
        chances = odds / odds.sum(axis=1, keepdims=True)
        return 1 - np.prod(1 - chances, axis=0)

    @staticmethod
    def _words(scores: Scores, queries: Sequence[str]) -> Any:
        import numpy as np

        return _deviations(np.stack([scores(query) for query in queries]))


def _deviations(rows: Any) -> Any:
    """Return each row less its mean, in standard deviations."""
    return (rows - rows.mean(axis=1, keepdims=True)) / (rows.std(axis=1, keepdims=True) + 1e-6)
