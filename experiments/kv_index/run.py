"""How many cached tokens does the prefix index foresee, beside vLLM's own cache manager?

The prefix index against vLLM's own cache manager: how many cached tokens it foresees, with KV events and without.

    python -m experiments kv_index

No engine runs: vLLM's scheduler-side cache (`KVCacheManager`, of vLLM 0.32) takes prompts, evicts, and publishes its
events, which go through its encoder and our reader as over a socket. Prompts come behind 24 headers of 256 to 512
tokens (the first few wanted most, as words of a text are), six at a time, with answers of 16 tokens; the cache holds
about a third of the headers. Before each prompt the index says how much of it is cached; the manager then says how much
is. A part of the prompts comes past the scheduler, as from another client of the same server. Counts only: no time is
measured, and another machine gets the same.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from plait.core.kv_blocks import CachedBlocks
from plait.core.prefix_index import PrefixIndex
from plait.workers._shared.kv_events import EventReader

from .._tools.vllm_cache import ANSWER, BLOCK, TOGETHER, Cache

HEADERS, OWN, REQUESTS = 24, 40, 600
PAST = (0.0, 0.3)
"""Share of the prompts that the scheduler does not know of."""
SEEDS = (1, 2, 3)


@dataclass
class Found:
    """What a way of knowing came to."""

    errors: list[int] = field(default_factory=list[int])
    """Predicted less real cached tokens, of each prompt."""
    real: list[int] = field(default_factory=list[int])


def play(events: bool, past: float, seed: int) -> Found:
    """Send the prompts of one seed, and compare."""
    rng, found = random.Random(seed), Found()
    headers = [[rng.randrange(5000) for _ in range(rng.randrange(256, 513))] for _ in range(HEADERS)]
    weights = [1 / (1 + i) for i in range(HEADERS)]
    cache, index, blocks = Cache(1 + 24 * 384 // BLOCK // 3), PrefixIndex(), CachedBlocks()
    order, number = EventReader(blocks), 0
    index.limit("engine", cache.tokens, BLOCK)
    if events:
        index.record_report("engine", (), cleared=True)
    under_way: deque[tuple[int, Any, list[int], int, int, bool]] = deque()
    for attempt in range(1, REQUESTS + 1):
        ids = rng.choices(headers, weights)[0] + [rng.randrange(5000) for _ in range(OWN)]
        content = b"".join(each.to_bytes(4, "little") for each in ids)
        ours, had = rng.random() >= past, 0
        if ours:
            had = index.record_sent("engine", "model", content, attempt)
        request, cached = cache.begin(ids)
        if ours:
            predicted = min(had // 4 // BLOCK * BLOCK, (len(ids) - 1) // BLOCK * BLOCK)
            found.errors.append(predicted - cached)
            found.real.append(cached)
        under_way.append((attempt, request, ids, had, cached, ours))
        if len(under_way) >= TOGETHER:
            done, request, ids, had, cached, ours = under_way.popleft()
            cache.end(request, [rng.randrange(5000) for _ in range(ANSWER)])
            if ours:
                index.set_scale("engine", done, 4.0)
                index.ended("engine", 4 * len(ids), had, len(ids), cached, ANSWER)
        else:
            done, ours = 0, False
        if (batch := cache.events()) is not None:
            order.feed([b"", number.to_bytes(8, "big"), batch])
            number += 1
        if done and ours:
            blocks.ended(done, ids)
        if events and (news := blocks.news()) is not None:
            index.record_report("engine", *news)
    return found


def main() -> None:
    """Print the table."""
    print("| prompts from others | | error, tokens | within a block | promised, not there | not foreseen | real hits |")
    print("|---|---|---|---|---|---|---|")
    for past in PAST:
        for events in (False, True):
            whole = Found()
            for seed in SEEDS:
                one = play(events, past, seed)
                whole.errors += one.errors
                whole.real += one.real
            print(f"| {past:.0%} | {'events' if events else 'what was sent'} | {_row(whole)} |", flush=True)


def _row(found: Found) -> str:
    errors, hits = found.errors, sum(found.real)
    near = sum(abs(each) <= BLOCK for each in errors) / len(errors)
    over, under = (sum(max(0, sign * each) for each in errors) / hits for sign in (1, -1))
    real = f"{fmean(found.real):.0f} of {384 + OWN}"
    return f"{fmean(map(abs, errors)):.1f} | {near:.1%} | {over:.1%} | {under:.1%} | {real}"
