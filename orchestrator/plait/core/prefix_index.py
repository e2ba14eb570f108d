"""Index of the contexts that workers probably hold in their prefix caches, for all runs and workers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

BYTES_A_TOKEN = 4
"""Of text, roughly; a token id takes as many."""
UNKNOWN = 4 << 20
"""Assumed cache size in bytes of context (about a million tokens) of a worker that reports no size."""
MOST = 256 << 20
"""Bytes of context in an index, of all workers together."""
_MISS, _HIT = 0.8, 1.02
"""Factors that adapt a worker's assumed size after a report with fewer or more cache hits than expected."""
_TELLING = 64
"""Tokens: an expected hit below this length does not change the assumed size."""
_CONTEXTS, _CONTEXT_BYTES = 4096, 8 << 20
"""Limits, in contexts and in bytes, of what is remembered for a worker that reports its cache."""


class _Node:
    """A piece of context; its path from the root holds all preceding text."""

    __slots__ = ("children", "edge", "holders", "parent")

    def __init__(self, edge: bytes, parent: _Node | None, holders: int = 0) -> None:
        self.edge, self.parent, self.holders = edge, parent, holders
        self.children: dict[int, _Node] | None = None
        """Children by the first byte of their edges."""


class _Cache:
    """The assumed cache contents of one worker."""

    __slots__ = (
        "bit", "block", "bytes_a_token", "contexts", "order", "read", "remembered", "reports", "room", "tells", "told",
        "used",
    )  # fmt: skip

    def __init__(self, bit: int) -> None:
        self.bit = bit
        """Of `_Node.holders`."""
        self.order: OrderedDict[_Node, None] = OrderedDict()
        """Least recently used first. A prefix is always used at the same time as its continuation, or later."""
        self.used = 0
        """Bytes of these pieces."""
        self.told: int | None = None
        """Number of cached tokens reported by the worker."""
        self.room = 1.0
        """Observed share of the assumed contents."""
        self.reports = False
        """Whether the worker has ever reported cached tokens; until then, a report of none is ignored."""
        self.read, self.bytes_a_token = (0, 0), float(BYTES_A_TOKEN)
        self.tells = False
        """Whether the worker reports its cache contents; then plait does not infer them from the cache size."""
        self.block = 0
        self.contexts: OrderedDict[int, tuple[Hashable, bytes, float]] = OrderedDict()
        """By attempt: root, content, and bytes for each token (0: not known yet)."""
        self.remembered = 0
        """Bytes of these."""

    @property
    def most(self) -> float:
        """Number of bytes held."""
        if self.tells:
            return math.inf
        return self.room * (UNKNOWN if self.told is None else self.told * self.bytes_a_token)


class PrefixIndex:
    """A radix tree of contexts, as bytes, with the workers that hold each piece.

    It records what was sent where (`record_sent`) and its outcome (`ended`). The cache size bounds
    each worker's part. The least recently used piece is evicted first, the end of a context before its start, as in
    vLLM. Contexts of different roots (model, salt) share nothing.

    A worker that follows its engine's events reports how much of a context it holds. From then on the reports replace
    the size, because an engine may share its cache with others.

    >>> index = PrefixIndex()
    >>> index.record_sent("a", "model", b"header and question"), index.held_bytes("model", b"header and another")
    (0, {'a': 11})
    """

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._caches: dict[str, _Cache] = {}
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return sum(cache.used for cache in self._caches.values())

    def limit(self, worker: str, tokens: int | None, block: int | None = None) -> None:
        """Set a worker's cache capacity and block size in tokens, if the worker reports them."""
        cache = self._cache(worker)
        cache.told, cache.block = tokens, block or 0
        self._trim(cache)

    def forget(self, worker: str) -> None:
        """A worker went away with its cache."""
        cache = self._caches.get(worker)
        if cache is not None:
            self._empty(cache)
            cache.contexts.clear()
            cache.tells, cache.remembered = False, 0

    def record_report(self, worker: str, held: Iterable[tuple[int, int]], cleared: bool = False) -> None:
        """Record a worker's cache report: the cached prefix length in tokens for each attempt, which may be another
        worker's. `cleared`: the cache was emptied first."""
        cache = self._cache(worker)
        cache.tells = True
        if cleared:
            self._empty(cache)
        for attempt, tokens in held:
            known = cache.contexts.get(attempt)
            if known is None:
                others = (other.contexts.get(attempt) for other in self._caches.values())
                if (known := next(filter(None, others), None)) is not None:
                    self._remember(cache, attempt, known)
            if known is not None:
                root, content, scale = known
                scale = scale or cache.bytes_a_token
                upto = min(len(content), round(tokens * scale))
                self._cut(cache, root, content, upto, max(upto, round((tokens + cache.block) * scale)))
                if upto:
                    self._enter(cache, root, content[:upto])
        self._trim(cache)

    def held_bytes(self, root: Hashable, content: bytes) -> dict[str, int]:
        """Return the bytes of a context, from its start, that each worker holds; workers without any are left out."""
        nodes: list[tuple[int, int]] = []
        for node, upto in self._walk(root, content):
            if not node.holders:
                break
            nodes.append((upto, node.holders))
        held: dict[str, int] = {}
        seen = 0
        for upto, holders in reversed(nodes):
            new = holders & ~seen
            seen |= new
            while new:
                bit = new & -new
                held[self._names[bit]] = upto
                new ^= bit
        return held

    def record_sent(self, worker: str, root: Hashable, content: bytes, attempt: int = 0) -> int:
        """Record that a context was sent to a worker. Return the number of bytes that the worker already held.
        `attempt`: the id in the worker's later reports."""
        cache = self._cache(worker)
        if attempt and cache.tells:
            self._remember(cache, attempt, (root, content, 0.0))
        had = self._enter(cache, root, content)
        self._trim(cache)
        return had

    def _remember(self, cache: _Cache, attempt: int, context: tuple[Hashable, bytes, float]) -> None:
        cache.contexts[attempt] = context
        cache.remembered += len(context[1])
        while len(cache.contexts) > _CONTEXTS or cache.remembered > max(_CONTEXT_BYTES, len(context[1])):
            _, (_, oldest, _) = cache.contexts.popitem(last=False)
            cache.remembered -= len(oldest)

    def is_reported(self, worker: str, attempt: int) -> bool:
        """Return whether a worker may report an attempt's context."""
        return attempt in self._cache(worker).contexts

    def set_scale(self, worker: str, attempt: int, scale: float) -> None:
        """Set the bytes per token of an attempt's context."""
        cache = self._cache(worker)
        if (known := cache.contexts.get(attempt)) is not None:
            cache.contexts[attempt] = *known[:2], scale

    def _enter(self, cache: _Cache, root: Hashable, content: bytes) -> int:
        """Enter a context as held and just used; return the bytes of it that were held before."""
        node, at, had = self._roots.get(root), 0, 0
        if node is None:
            node = self._roots[root] = _Node(b"", None)
        path: list[_Node] = []
        while at < len(content):
            if node.children is None:
                node.children = {}
            child = node.children.get(content[at])
            if child is None:
                child = node.children[content[at]] = _Node(content[at:], node)
            elif (same := _common(child.edge, content, at)) < len(child.edge):
                child = self._split(child, same)
            node = child
            at += len(node.edge)
            path.append(node)
            if node.holders & cache.bit:
                had = at
            else:
                node.holders |= cache.bit
                cache.used += len(node.edge)
        for node in reversed(path):
            cache.order[node] = None
            cache.order.move_to_end(node)
        return had

    def ended(self, worker: str, sent: int, had: int, prompt: int, cached: int, generated: int) -> None:
        """Record the end of an attempt. `sent`: bytes of its context; `had`: those expected to be cached.

        The worker reports `prompt` tokens, `cached` tokens among them, and `generated` tokens. The generated tokens and
        the rest of the prompt take cache space too.
        """
        cache = self._cache(worker)
        cache.reports = cache.reports or cached > 0
        if prompt and sent:
            total, tokens = cache.read
            cache.read = total + sent, tokens + prompt
            if cache.read[1] > 1 << 16:
                cache.read = cache.read[0] >> 1, cache.read[1] >> 1
            cache.bytes_a_token = cache.read[0] / cache.read[1]
        if cache.tells:
            return
        expected = had / cache.bytes_a_token
        if cache.reports and expected >= _TELLING:
            if cached < expected / 2:
                cache.room *= _MISS
            elif cached > 0.9 * expected:
                cache.room = min(1.0, cache.room * _HIT)
        other = max(0, prompt - cached - round((sent - had) / cache.bytes_a_token))
        size = round((generated + other) * cache.bytes_a_token)
        if size:
            cache.order[_Node(bytes(0), None, -size)] = None
            cache.used += size
        self._trim(cache)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _cache(self, worker: str) -> _Cache:
        cache = self._caches.get(worker)
        if cache is None:
            cache = self._caches[worker] = _Cache(1 << len(self._caches))
            self._names[cache.bit] = worker
        return cache

    def _walk(self, root: Hashable, content: bytes) -> Iterator[tuple[_Node, int]]:
        """Yield the pieces that a context begins with, each with how many bytes are the same up to its end."""
        node, at = self._roots.get(root), 0
        while node is not None and node.children is not None and at < len(content):
            node = node.children.get(content[at])
            if node is not None:
                same = _common(node.edge, content, at)
                at += same
                yield node, at
                if same < len(node.edge):
                    return

    def _split(self, node: _Node, at: int) -> _Node:
        """Part a piece in two and return the upper one."""
        assert node.parent is not None and node.parent.children is not None
        upper = _Node(node.edge[:at], node.parent, node.holders)
        node.parent.children[node.edge[0]] = upper
        node.edge, node.parent = node.edge[at:], upper
        upper.children = {node.edge[0]: node}
        for bit in _bits(upper.holders):
            order = self._caches[self._names[bit]].order
            above: _Node = upper
            while above.parent is not None:
                order[above] = None
                order.move_to_end(above)
                above = above.parent
        return upper

    def _trim(self, cache: _Cache) -> None:
        most = min(cache.most, MOST / len(self._caches))
        while cache.used > most and cache.order:
            self._remove(cache, next(iter(cache.order)))  # the least recently used piece

    def _empty(self, cache: _Cache) -> None:
        while cache.order:
            self._remove(cache, next(iter(cache.order)))

    def _cut(self, cache: _Cache, root: Hashable, content: bytes, upto: int, after: int) -> None:
        """Remove a worker's context from `upto` on, and its continuations beyond `after`, the end of the first missing
        block. Branches between `upto` and `after` lie in another block and stay."""
        for place in (upto, after):
            for node, end in self._walk(root, content):
                if (start := end - len(node.edge)) < place < end:
                    self._split(node, place - start)
                    break
        path = [(node, end) for node, end in self._walk(root, content) if end - len(node.edge) >= upto]
        beyond = [node for node, end in path if end - len(node.edge) >= after][:1]
        while beyond:
            node = beyond.pop()
            beyond += (node.children or {}).values()
            if node.holders & cache.bit:
                self._remove(cache, node)
        for node, _ in reversed(path):
            if any(child.holders & cache.bit for child in (node.children or {}).values()):
                break
            if node.holders & cache.bit:
                self._remove(cache, node)

    def _remove(self, cache: _Cache, node: _Node) -> None:
        """Remove a piece from a worker. A piece that no worker holds is deleted."""
        del cache.order[node]
        if node.holders < 0:  # not a context, but space taken by other tokens
            cache.used += node.holders
            return
        cache.used -= len(node.edge)
        node.holders &= ~cache.bit
        while not node.holders and not node.children and node.parent is not None:
            assert node.parent.children is not None
            del node.parent.children[node.edge[0]]
            node = node.parent
        if node.parent is None and not node.children:
            self._roots = {root: top for root, top in self._roots.items() if top is not node}


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _common(edge: bytes, content: bytes, at: int) -> int:
    """Return the length in bytes of the common prefix of an edge and a context from an offset on."""
    if content.startswith(edge, at):
        return len(edge)
    low, high = 0, min(len(edge), len(content) - at)
    while low < high:  # longest common prefix by bisection: comparing slices is fast
        middle = (low + high + 1) // 2
        if content.startswith(edge[:middle], at):
            low = middle
        else:
            high = middle - 1
    return low
