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
from plait.core.tools.more import MORE_TOOLS, SHOWN
from plait.core.tools.tool import Tool, ToolSpec, tool

from .loading import AnyTool

__all__ = ["Catalog", "Words", "fused", "searcher"]

EMBED = "embed"
"""Name of the tool whose vectors are used, if a run has it (`plait.workers.tools.embed`)."""
MOST = 200
"""Most tools that one search returns."""
_APART = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\W]+")
_CONSTANT = 60
"""Of reciprocal rank fusion (Cormack et al., SIGIR 2009)."""
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
        self._empty = not any(tokens)
        if not self._empty:
            self._index.index(tokens, show_progress=False)

    def ranked(self, query: str) -> list[int]:
        """Return the places of the texts that share a word with the query, best first; of equals the first."""
        wanted = [] if self._empty else [word for word in _words(query) if word in self._index.vocab_dict]
        if not wanted:
            return []
        scores = self._index.get_scores(wanted)
        order = (-scores).argsort(kind="stable")
        return [int(place) for place in order if scores[place] > 0]


def fused(*rankings: Sequence[int]) -> list[int]:
    """Return one ranking of several: each adds 1 / (60 + rank) to what it ranks (reciprocal rank fusion).

    >>> fused([0, 1, 2], [2, 1])
    [2, 1, 0]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, place in enumerate(ranking, 1):
            scores[place] = scores.get(place, 0.0) + 1 / (_CONSTANT + rank)
    return sorted(scores, key=lambda place: (-scores[place], place))


class Catalog:
    """The tools of a run, with an index of their names, descriptions and arguments."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = specs
        self.texts = [_told(spec) for spec in specs]
        self._words = Words(self.texts)
        self._needs = [list(schemas.needs(spec.parameters).values()) for spec in specs]
        self._made = [schemas.makes(spec.returns) for spec in specs]
        self._makers: dict[str, list[int]] = {}
        for place, made in enumerate(self._made):
            for what in made:
                self._makers.setdefault(what, []).append(place)
        families: dict[str, list[int]] = {}
        for place, spec in enumerate(specs):
            families.setdefault(spec.name.rpartition(".")[0], []).append(place)
        self._families = list(families.values()) if 1 < len(families) < len(specs) else []
        """Tools of one service, such as `mail.send` and `mail.list`: what is wanted of it is often several of them."""
        told = [" ".join(self.texts[place] for place in members) for members in self._families]
        self._family_words = Words(told) if told else None
        self.vectors: Any = None
        """A row of length 1 for each tool, once they were asked for."""

    def search(self, query: str, k: int, vector: Sequence[float] | None = None, producers: bool = True) -> list[int]:
        """Return the places of at most `k` tools, best first. `producers`: a tool is followed by one that makes what it
        needs, the best ranked one, unless one that is chosen already does."""
        ranking = self._words.ranked(query)
        if vector is not None:
            ranking = fused(ranking, self._near(vector))
        if self._family_words is not None:
            ranking = fused(ranking, self._by_family(query, ranking))
        if not producers:
            return ranking[:k]
        rank = {place: at for at, place in enumerate(ranking)}
        chosen: dict[int, None] = {}
        for place in ranking:
            if len(chosen) >= k:
                break
            self._add(place, chosen, rank)
        return list(chosen)[:k]

    def _by_family(self, query: str, ranking: Sequence[int]) -> list[int]:
        """Return the tools of the families whose texts fit best, those of a family as they are ranked."""
        assert self._family_words is not None
        rank = {place: at for at, place in enumerate(ranking)}
        best = self._family_words.ranked(query)[:MOST]
        last = len(self.specs)
        return [
            place for at in best for place in sorted(self._families[at], key=lambda one: (rank.get(one, last), one))
        ]

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

    def _near(self, vector: Sequence[float]) -> list[int]:
        import numpy as np

        against = np.asarray(vector, dtype=float)
        return [int(place) for place in (-(self.vectors @ against)).argsort(kind="stable")]


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
            vector = await _vector(catalog, query, known(ctx.run).get(EMBED), ctx)
        left_out = frozenset(without or ())
        wanted = max(1, min(k, MOST))
        places = catalog.search(query, wanted + len(left_out), vector)
        specs = [catalog.specs[place] for place in places if catalog.specs[place].name not in left_out]
        return [_row(spec) for spec in specs[:wanted]]

    return tool(name=MORE_TOOLS)(search)


async def _vector(catalog: Catalog, query: str, embed: AnyTool | None, ctx: ToolContext) -> list[float] | None:
    """Return a query's vector, of length 1, and see to it that the tools have theirs; nothing without a tool for it."""
    if embed is None or not catalog.specs:
        return None
    import numpy as np

    if catalog.vectors is None:
        catalog.vectors = _unit(await _embedded(embed, catalog.texts, ctx))
    (vector,) = await _embedded(embed, [query], ctx)
    unit = _unit([vector])[0]
    if unit.shape != catalog.vectors.shape[1:]:
        raise ToolError(f"the tool {EMBED!r} gave vectors of {unit.shape[0]} and {catalog.vectors.shape[1]} numbers")
    return cast("list[float]", np.asarray(unit).tolist())


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
    """Return a tool as a model is told of it."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        **({"returns": spec.returns} if spec.returns else {}),
    }


def _told(spec: ToolSpec) -> str:
    """Return what a tool is searched by."""
    known = schemas.arguments(spec.parameters)
    about = [f"{name} {schema.get('description', '')}" for name, schema in known.items()]
    return " ".join((spec.name, spec.name, spec.description, *about))


def _words(text: str) -> list[str]:
    """Return the words of a text, names cut apart, plurals as singulars."""
    words = (word.casefold() for word in _APART.split(text) if word)
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
