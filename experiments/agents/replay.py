"""Recorded coding-agent sessions and conversations on simulated engines, under one rule, and Bélády's bound."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from plait.core.events import Job
from plait.core.ops import ModelCall, Plugin
from plait.core.request import Request
from plait.core.result import Result
from plait_research.simulation.latency import Host, saturating
from plait_research.simulation.recorded_sessions import AgentSession, read_sessions, simulate_sessions
from plait_research.simulation.workload import at_rate

from .._tools import trie_order

DATA = Path(__file__).parent / "data"
BLOCK = 64
PREFILL_RATE = 10_000.0
MAX_GAP_S = 10.0
DRAW = 16
"""Sessions of a draw. Draw 0 is for choosing settings; pages use the others."""


@dataclass(frozen=True)
class Case:
    """Recorded sessions and the engines that they run on."""

    trace: str = "coding_sessions"
    sessions: int = DRAW
    cache: int = 1_200_000
    """Tokens of an engine's prefix cache."""
    engines: int = 1
    rate: float | None = None
    """Sessions that arrive a second; `None`: all at once, or as recorded in `conversations`."""
    rules: tuple[str, ...] = ("", "one group", "critical-path", "trie-order", *(f"at most {k}" for k in (4, 8, 12)))


_ROUTERS = ("least-loaded", "affinity")
CASES: dict[str, Case] = {
    "16 sessions, cache 1.2 M": Case(),
    "16 sessions, cache 0.4 M": Case(cache=400_000, rules=("", *(f"at most {k}" for k in (2, 4)))),
    "16 sessions, all fit": Case(cache=4_000_000, rules=("", "one group", "trie-order")),
    "16 sessions arriving, 1 a minute": Case(rate=1 / 60, rules=("",)),
    "600 conversations, 2 engines of 1 M": Case("conversations", 600, 1_000_000, 2, rules=_ROUTERS),
    "32 sessions, 4 engines of 0.6 M": Case(sessions=32, cache=600_000, engines=4, rules=_ROUTERS),
}
POLICY = "working-set"


class Played(NamedTuple):
    """One draw of a case, under one rule. Times are in seconds."""

    case: str
    rule: str
    draw: int
    makespan: float
    p50: float
    """Of a session, from its arrival to its end."""
    p99: float
    call_p50: float
    """Of a call, from when it was ready to its end."""
    call_p99: float
    prompt: int
    """Prompt tokens."""
    computed: int
    unique: int
    belady: int
    """Prompt tokens that the best possible eviction would have computed in the same order of calls."""


@dataclass(slots=True)
class _Logged(AgentSession):
    """A session that records the order of calls."""

    order: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)

    def outcome(self, job: Job) -> Result:
        result = AgentSession.outcome(self, job)
        if isinstance(job.op, ModelCall):
            call = self.calls[int(job.step.rpartition("-")[2])]
            self.order.append((call.prompt, call.block, tuple(call.numbers)))
        return result


@cache
def _all_sessions(trace: str) -> list[AgentSession]:
    return read_sessions(DATA / f"{trace}.jsonl.gz", max_gap=MAX_GAP_S)[0]


def drawn(case: Case, draw: int) -> list[AgentSession]:
    """Return the sessions of a draw."""
    known = _all_sessions(case.trace)
    if case.trace == "conversations":
        return known[: case.sessions]
    named = sorted(known, key=lambda session: session.name)
    Random(46).shuffle(named)
    if case.sessions > DRAW:  # draws overlap
        named = [session for session in named if session not in named[:DRAW]]
        Random(draw).shuffle(named)
        return named[: case.sessions]
    return named[draw * DRAW : (draw + 1) * DRAW]


def play(name: str, rule: str, draw: int) -> Played:
    """Play a draw of a case. A rule is policies joined by `+`, `at most K` sessions at a time (each starts when an
    earlier one ends), or `one group` for one fairness group (in order of arrival)."""
    case = CASES[name]
    order: list[tuple[int, int, tuple[int, ...]]] = []
    sessions = [_Logged(session.name, session.at, session.calls, order) for session in drawn(case, draw)]
    most = int(rule.rpartition(" ")[2]) if rule.startswith("at most ") else 0
    names = () if most or rule == "one group" else tuple(filter(None, rule.split("+")))
    policies = tuple(Plugin.of(trie_order.NAMES.get(name, name)) for name in names)
    request = Request(
        policies=policies,
        fairness_group="all" if rule == "one group" else "",
    )
    hosts = [
        Host(
            f"engine-{i}",
            32,
            cache_tokens=case.cache,
            block=BLOCK,
            prefill_rate=PREFILL_RATE,
            decode_rate=saturating(2400.0, 20.0),
            blocking=True,
        )
        for i in range(case.engines)
    ]
    times: dict[str, Any] = {}
    if case.trace == "coding_sessions":
        times["arrivals"] = at_rate(len(sessions), case.rate, seed=draw)
    after = {i: (i - most, 0.0) for i in range(most, len(sessions))} if most else {}
    report = simulate_sessions(sessions, request, hosts, seed=draw, after=after, **times)
    assert report.done == len(sessions), report.failure
    bound = belady(order, case.cache * case.engines)
    computed, unique = report.prompt_computed, report.prompt_unique
    latency, turn = report.latency, report.turn
    return Played(
        name, rule, draw, report.makespan, latency.p50, latency.p99, turn.p50, turn.p99, report.usage.prompt, computed,
        unique, bound,
    )  # fmt: skip


def belady(calls: Sequence[tuple[int, int, tuple[int, ...]]], tokens: int) -> int:
    """Return the prompt tokens that calls (prompt, tokens of a block, blocks) compute, in this order, with one cache
    of `tokens` tokens that evicts the block whose next use is furthest away. For several engines it is one cache of
    their total size, a bound that they cannot reach."""
    following: dict[int, int] = {}
    next_uses: list[list[int]] = []
    for place in reversed(range(len(calls))):
        prompt, size, blocks = calls[place]
        next_uses.append([following.get(block, len(calls)) for block in blocks])
        following |= dict.fromkeys(blocks[: prompt // size], place)
    computed = 0
    cached: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    for (prompt, size, blocks), uses in zip(calls, reversed(next_uses), strict=True):
        full = (prompt - 1) // size
        hits = next((at for at, block in enumerate(blocks[:full]) if block not in cached), full)
        computed += prompt - hits * size
        for depth, (block, use) in enumerate(zip(blocks, uses, strict=True)):
            cached[block] = use
            heapq.heappush(heap, (-use, -depth, block))
        while len(cached) > tokens // size:
            use, _, block = heapq.heappop(heap)
            if cached.get(block) == -use:
                del cached[block]
    return computed
