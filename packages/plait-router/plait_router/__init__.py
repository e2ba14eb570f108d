"""Placement of requests on engines by cached prompts, sessions and load, without the rest of plait.

Pure, without clock or I/O, and for one thread.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or find_spec(f"{__name__}.prefix_index") is None:  # a checkout, where these files are plait's alone
    from plait.core.kv_blocks import LOAD_COST, CachedBlocks, read
    from plait.core.placement import choose_holder, is_overloaded
    from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
else:
    from .kv_blocks import LOAD_COST, CachedBlocks, read
    from .placement import choose_holder, is_overloaded
    from .prefix_index import BYTES_A_TOKEN, PrefixIndex

MAX_SESSIONS = 100_000
"""Sessions and programs whose engine is remembered."""


class Router:
    """Sends a request to the engine of its session, else to one with most of its prompt cached, else to that of its
    program. An engine that runs more than `overload` times as many requests as the least loaded one, plus `slack`, is
    passed over; the least loaded one then gets the request, and the session with it. A prompt is a text or token ids.

    `slots`: sequences that an engine runs at once; the default of `slack` follows from it. `cache_tokens`: size of an
    engine's prefix cache. `at_least`: a cached beginning counts from this number of tokens and half the prompt.
    `load_cost`: cost of loading a token's keys and values from an engine's host memory, as a share of computing them.

    >>> router, header = Router(["a", "b"]), "a header that many requests share; " * 9
    >>> engine = router.begin(header + "one?")
    >>> router.choose(header + "two?"), router.choose("another"), router.running
    ('a', 'b', {'a': 1, 'b': 0})
    >>> router.end(engine)
    """

    def __init__(
        self, engines: Iterable[str] = (), *, slots: int = 128, overload: float = 2.0, slack: int | None = None,
        cache_tokens: int | None = None, at_least: int = 64, load_cost: float = LOAD_COST,
    ) -> None:  # fmt: skip
        self._guard = slots, overload, slack
        self._cache_tokens, self._at_least, self._load_cost = cache_tokens, at_least, load_cost
        self.running: dict[str, int] = {}
        """Number of requests by engine, of those that are up."""
        self._down: dict[str, int] = {}
        self.totals: Counter[str] = Counter()
        """Requests by engine, which decide between equal loads."""
        self._index = PrefixIndex()
        self._blocks: dict[str, CachedBlocks] = {}
        """Caches by their own events."""
        self._homes: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Engines by session or program, the least recently used first."""
        for engine in engines:
            self.add(engine)

    def add(self, engine: str) -> None:
        """Add an engine, or record that it is up again."""
        self.running.setdefault(engine, self._down.pop(engine, 0))
        self._index.limit(engine, self._cache_tokens)

    def set_down(self, engine: str) -> None:
        """Record that an engine is away, and its cache with it. Its requests still end."""
        self._down.setdefault(engine, self.running.pop(engine, 0))
        self._forget_cache(engine)

    def remove(self, engine: str) -> None:
        """Remove an engine with its requests."""
        self.set_down(engine)
        del self._down[engine]

    def forget_contexts(self) -> int:
        """Forget sessions and caches, as after new weights. Return the number of sessions and programs."""
        known = len(self._homes)
        self._homes.clear()
        for engine in self.running:
            self._forget_cache(engine)
        return known

    def record_kv_events(self, engine: str, events: Iterable[Any]) -> None:
        """Record a batch of vLLM's KV cache events, decoded from msgpack. From then on they say which of a prompt's
        token ids are cached there."""
        blocks = self._blocks.setdefault(engine, CachedBlocks(self._load_cost))
        blocks.take(block for event in events for block in read(event))

    def choose(self, prompt: str | Sequence[int] = "", session: str = "", program: str = "") -> str:
        """Return the engine for a request. Raises `LookupError` if none is up."""
        if not self.running:
            raise LookupError("no engine is up: add one, or wait until one answers again")
        content = _bytes_of(prompt)
        cached = {name: size // BYTES_A_TOKEN for name, size in self._index.held_bytes("", content).items()}
        if not isinstance(prompt, str):
            cached |= {name: blocks.count_cached_tokens(prompt) for name, blocks in self._blocks.items()}
        holder = choose_holder(cached, len(content) / BYTES_A_TOKEN, self._at_least, self.running.get)
        idlest = min(self.running, key=lambda name: (self.running[name], self.totals[name], name))
        least, homes = self.running[idlest], [self._homes.get(key) for key in (("s", session), ("p", program))]
        for name, shared in ((homes[0], False), (holder, True), (homes[1], True)):
            if name in self.running and not is_overloaded(self.running[name], least, *self._guard, shared):
                return name
        return idlest

    def begin(
        self, prompt: str | Sequence[int] = "", session: str = "", program: str = "", engine: str | None = None
    ) -> str:
        """Count a request on the engine that `choose` returns, or on `engine`, and return it."""
        engine = self.choose(prompt, session, program) if engine is None else engine
        self.running[engine] += 1
        self.totals[engine] += 1
        for key in (("s", session), ("p", program)):
            if key[1]:
                self._homes[key] = engine
                self._homes.move_to_end(key)
        while len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)
        self._index.record_sent(engine, "", _bytes_of(prompt))
        return engine

    def end(self, engine: str) -> None:
        """Record that a request on an engine is over."""
        for loads in (self.running, self._down):
            if engine in loads:
                loads[engine] = max(0, loads[engine] - 1)

    def _forget_cache(self, engine: str) -> None:
        self._index.forget(engine)
        self._blocks.pop(engine, None)


def _bytes_of(prompt: str | Sequence[int]) -> bytes:
    return prompt.encode(errors="replace") if isinstance(prompt, str) else array("i", prompt).tobytes()
