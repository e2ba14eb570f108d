"""Rules of placement by cached contexts: which holder gets a prompt, when it is overloaded, where a new prompt begins.

Imports nothing of plait, nor does `prefix_index.py`: the distribution plait-router ships both files too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping

_AS_GOOD = 0.9
"""Share of the best worker's cached tokens from which a less loaded worker counts as equally good."""


def choose_holder(
    cached: Mapping[str, int], prompt: float, at_least: int, load_of: Callable[[str], int | None]
) -> str | None:
    """Return the least loaded of the workers with about the most cached tokens, or `None` if that is less than half of
    the prompt or than `at_least`. `load_of`: attempts that a worker runs, or `None` if it cannot take the prompt."""
    most = max(cached.values(), default=0)
    if most < at_least or most < prompt / 2:
        return None
    best: tuple[int, str] | None = None
    for name, tokens in cached.items():  # a loop: this is run for each step that is placed
        if tokens >= _AS_GOOD * most and (load := load_of(name)) is not None and (best is None or (load, name) < best):
            best = load, name
    return None if best is None else best[1]


def is_overloaded(running: int, least: int, slots: int, overload: float, slack: int | None, shared: bool) -> bool:
    """Return whether a worker runs more than `overload` times as many attempts as the least loaded one, plus `slack`.

    The default slack depends on whether the context is `shared` with other runs: all of them use it, so it is
    replicated sooner."""
    if slack is None:
        slack = min(32, -(-slots // 4) if shared else 3 * slots // 4)
    return running > overload * least + slack


def choose_by_hash(names: Iterable[str], beginning: int) -> str | None:
    """Return the worker for the beginning of a prompt by rendezvous hashing: the largest hash of the pair wins. A
    worker that joins or leaves moves only its own prompts."""
    return max(names, key=lambda name: (_hash_draw(name, beginning), name), default=None)


def _hash_draw(name: str, beginning: int) -> int:
    """Return a hash of a number (the finaliser of MurmurHash3)."""
    mixed = zlib.crc32(name.encode()) ^ beginning
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return mixed ^ mixed >> 16
