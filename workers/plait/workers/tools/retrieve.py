"""Finds tools among thousands, for the call `more_tools`: by words (BM25), by vectors if there is a tool `embed`, and
with the producers of what they need."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import JsonValue

from plait.core.errors import ToolError
from plait.core.tools import schemas
from plait.core.tools.context import ToolContext
from plait.core.tools.schemas import MORE_TOOLS, SHOWN
from plait.core.tools.tool import Tool, ToolSpec, tool

from .tool_loader import AnyTool

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


EMBED = "embed"
"""Name of the tool whose vectors are used, if a run has it (`plait.workers.tools.embed`)."""
MAX_RESULTS = 200
"""Most tools that one search returns."""
_APART = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+")
_KEPT = 8
"""Catalogs of different sets of tools that are kept."""


class Words:
    """An index of texts by their words: BM25 as Lucene reckons it (k1 = 1.5, b = 0.75), by the library `bm25s`.

    Raises `ToolError` without that library.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            import bm25s
        except ModuleNotFoundError:
            raise ToolError("a search by words needs the package bm25s: pip install 'plait[retrieval]'") from None
        tokens = [_words(text) for text in texts]
        self._index: Any = bm25s.BM25()
        self._empty, self._count = not any(tokens), len(tokens)
        if not self._empty:
            self._index.index(tokens, show_progress=False)

    def scores(self, query: str) -> Any:
        """Return a number for each text, 0 for one that shares no word with the query."""
        import numpy as np

        wanted = [] if self._empty else [word for word in _words(query) if word in self._index.vocab_dict]
        return self._index.get_scores(wanted) if wanted else np.zeros(self._count)

    def ranked(self, query: str) -> list[int]:
        """Return the places of the texts that share a word with the query, best first; of equals the first."""
        scores = self.scores(query)
        order = (-scores).argsort(kind="stable")
        return [int(place) for place in order if scores[place] > 0]


class Catalog:
    """The tools of a run, with an index of their names, descriptions and arguments."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = specs
        self.texts = [_search_text(spec) for spec in specs]
        self._words = Words(self.texts)
        self._needs = [list(schemas.needed_kinds(spec.parameters).values()) for spec in specs]
        self._made = [schemas.made_kinds(spec.returns) for spec in specs]
        self._makers: dict[str, list[int]] = {}
        for place, made in enumerate(self._made):
            for what in made:
                self._makers.setdefault(what, []).append(place)
        services: dict[str, list[int]] = {}
        for place, spec in enumerate(specs):  # a tool without a service is one by itself
            services.setdefault(spec.name.rpartition(".")[0] or spec.name, []).append(place)
        self._named = 1 < len(services) < len(specs)
        """Tools are those of services, such as `mail.send` and `mail.list`: what is wanted of one is often several."""
        self.short = [f"{_plain(spec.name)}. {spec.description}" for spec in specs]
        """The text of each tool, from which its vector is computed."""
        self.services = [
            service_text(_plain(name), [self.short[place].removeprefix(f"{_plain(name)}: ") for place in members])
            for name, members in services.items()
        ]
        """The same of each service."""
        self._ranking = SentenceRanking(list(services.values()), Words(self.services).scores, Words(self.short).scores)
        self.vectors: tuple[Any, Any] | None = None
        """A row of length 1 for each service and each tool, once they were asked for."""

    def search(self, query: str, k: int, vectors: Any = None, producers: bool = True) -> list[int]:
        """Return the places of at most `k` tools, best first. `vectors`: those of the query and of its sentences.
        `producers`: a tool is followed by one that makes what it needs, the best ranked one, unless one that is chosen
        already does."""
        ranking = self._ranked(query, vectors)
        if not producers:
            return ranking[:k]
        rank = {place: at for at, place in enumerate(ranking)}
        chosen: dict[int, None] = {}
        for place in ranking:
            if len(chosen) >= k:
                break
            self._add(place, chosen, rank)
        return list(chosen)[:k]

    def _ranked(self, query: str, vectors: Any) -> list[int]:
        if not self.specs or (vectors is None and not self._named):
            return self._words.ranked(query)
        services, tools = self.vectors or (None, None)
        scores = self._ranking.scores(query, vectors, services, tools)
        order = [int(place) for place in (-scores).argsort(kind="stable")]
        if vectors is not None:
            return order
        shared = {at for at, score in enumerate(self._ranking.service_scores(query)) if score > 0}
        return [place for place in order if self._ranking.of[place] in shared]

    def _add(self, place: int, chosen: dict[int, None], rank: Mapping[int, int]) -> None:
        """Choose a tool, and what makes that which it needs, and so on."""
        todo = [place]
        while todo:
            at = todo.pop(0)
            if at in chosen:
                continue
            chosen[at] = None
            for what in self._needs[at]:
                makers = self._makers.get(what, ())
                if any(maker in chosen or maker in todo for maker in makers):
                    continue
                others = [maker for maker in makers if what not in self._needs[maker]] or makers
                if others:
                    todo.append(min(others, key=lambda other: (rank.get(other, len(self.specs)), other)))


def searcher(known: Callable[[str], Mapping[str, AnyTool]]) -> Tool[..., Any]:
    """Return the tool `more_tools` of a worker; `known`: the tools that a run may call, by its name."""
    catalogs: dict[tuple[int, ...], Catalog] = {}
    turn = asyncio.Lock()

    async def search(query: str, ctx: ToolContext, k: int = SHOWN, without: list[str] | None = None) -> JsonValue:
        """Find tools by what they shall do.

        Args:
            query: what the tools shall do.
            k: how many at most.
            without: names of tools that shall not be among them.
        """
        tools = {name: tool for name, tool in known(ctx.run).items() if name != EMBED}
        async with turn:
            key = tuple(map(id, tools.values()))
            if key not in catalogs:
                while len(catalogs) >= _KEPT:
                    del catalogs[next(iter(catalogs))]
                catalogs[key] = await asyncio.to_thread(Catalog, [tool.spec for tool in tools.values()])
            catalog = catalogs[key]
            vectors = await _vectors(catalog, query, known(ctx.run).get(EMBED), ctx)
        left_out = frozenset(without or ())
        wanted = max(1, min(k, MAX_RESULTS))
        places = catalog.search(query, wanted + len(left_out), vectors)
        specs = [catalog.specs[place] for place in places if catalog.specs[place].name not in left_out]
        return [_row(spec) for spec in specs[:wanted]]

    return tool(name=MORE_TOOLS)(search)


async def _vectors(catalog: Catalog, query: str, embed: AnyTool | None, ctx: ToolContext) -> Any:
    """Return the vectors of a query and of its sentences, each of length 1, and see to it that services and tools have
    theirs; nothing without a tool for it."""
    if embed is None or not catalog.specs:
        return None
    if catalog.vectors is None:
        texts = [*catalog.services, *catalog.short]
        rows = _unit(await _embedded(embed, texts, ctx))
        catalog.vectors = rows[: len(catalog.services)], rows[len(catalog.services) :]
    vectors = _unit(await _embedded(embed, [query, *sentences(query)], ctx))
    tools = catalog.vectors[1]
    if vectors.shape[1:] != tools.shape[1:]:
        raise ToolError(f"the tool {EMBED!r} gave vectors of {vectors.shape[1]} and {tools.shape[1]} numbers")
    return vectors


async def _embedded(embed: AnyTool, texts: Sequence[str], ctx: ToolContext) -> list[list[float]]:
    given: dict[str, object] = embed.bind({"texts": list(texts)})
    if embed.context is not None:
        given[embed.context] = ctx
    vectors: Any = await (embed.fn(**given) if embed.is_async else asyncio.to_thread(embed.fn, **given))
    if not isinstance(vectors, list) or len(cast("list[object]", vectors)) != len(texts):
        raise ToolError(f"the tool {EMBED!r} must return a vector for each of {len(texts)} texts")
    return cast("list[list[float]]", vectors)


def _unit(rows: list[list[float]]) -> Any:
    import numpy as np

    try:
        matrix = np.asarray(rows, dtype=float)
        return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    except ValueError:
        raise ToolError(f"the tool {EMBED!r} must return lists of numbers, all of one length") from None


def _row(spec: ToolSpec) -> JsonValue:
    """Return a tool's description for a model."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        **({"returns": spec.returns} if spec.returns else {}),
    }


def _search_text(spec: ToolSpec) -> str:
    """Return the search text of a tool."""
    known = schemas.arguments(spec.parameters)
    about = [f"{name} {schema.get('description', '')}" for name, schema in known.items()]
    return " ".join((spec.name, spec.name, spec.description, *about))


def _plain(name: str) -> str:
    """Return a tool's name as separate words, its service before it.

    >>> _plain("mail_box.send_letter")
    'mail box: send letter'
    """
    return name.replace("_", " ").replace(".", ": ")


def _words(text: str) -> list[str]:
    """Return the words of a text, names cut apart, plurals as singulars."""
    words = (word.casefold() for word in _APART.split(text) if word)
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
