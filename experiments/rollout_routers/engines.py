"""Engines in virtual time, and batches of rollouts with long tails for them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from plait_research.simulation.tokens import PrefixCache

ENGINES, SLOTS, CACHE, BLOCK = 4, 64, 400_000, 16
READ_RATE, PEAK, HALF = 20_000.0, 7_700.0, 76.0
"""Prompt tokens a second; n sequences decode PEAK · n / (n + HALF) tokens a second: 100 alone, 3,500 for 64."""
PROMPTS, SAMPLES = 32, 16
SHARE = 64
HEADER, QUESTION, TOOL, GAP_S = 500, 1_500, 300, 2.0
MOST = 8_192


@dataclass
class Trajectory:
    """A rollout: the prompt of its first turn, and how long each of its turns is."""

    name: str
    ids: list[int]
    lengths: list[int]
    gaps: list[float]
    turn: int = 0

    @property
    def text(self) -> str:
        """The context as text, four characters a token."""
        return "".join(f"{token:04x}" for token in self.ids)


def draw_batch(shape: str, seed: int) -> list[Trajectory]:
    """Return a batch in the order in which its first turns are sent."""
    rng = Random(f"{shape}, {seed}")
    header = _draw_ids(rng, HEADER)
    batch: list[Trajectory] = []
    for prompt in range(PROMPTS):
        ids = header + _draw_ids(rng, QUESTION)
        for sample in range(SAMPLES):
            turns = 1 if shape == "one turn" else 1 + min(15, int(rng.expovariate(1 / 4)))
            middle, spread = (6.2, 1.1) if shape == "one turn" else (5.0, 0.8)  # medians of 490 and 150 tokens
            lengths = [min(MOST, 1 + int(rng.lognormvariate(middle, spread))) for _ in range(turns)]
            gaps = [rng.expovariate(1 / GAP_S) for _ in range(turns)]
            batch.append(Trajectory(f"{prompt}-{sample}", list(ids), lengths, gaps))
    # Each worker of the trainer sends a share of the batch, all at the same time.
    shares = [batch[start : start + SHARE] for start in range(0, len(batch), SHARE)]
    return [trajectory for row in zip(*shares, strict=True) for trajectory in row]


def _draw_ids(rng: Random, count: int) -> list[int]:
    return [rng.getrandbits(16) for _ in range(count)]


@dataclass
class Engine:
    """Reads prompts one after another, and decodes what it has read together, up to its slots."""

    cache: PrefixCache = field(default_factory=lambda: PrefixCache(CACHE, BLOCK))
    waiting: deque[tuple[Trajectory, int]] = field(default_factory=deque[tuple[Trajectory, int]])
    held: int = 0
    """Slots that are taken."""
    mark: float = 0.0
    at: float = 0.0
    read_until: float = 0.0
    goals: list[tuple[float, int, Trajectory]] = field(default_factory=list[tuple[float, int, Trajectory]])
    version: int = 0
    computed: int = 0
    generated: int = 0

    def advance(self, now: float) -> None:
        """Decode until now."""
        if self.goals:
            self.mark += (now - self.at) * PEAK / (len(self.goals) + HALF)
        self.at = now

    def next_end(self) -> float | None:
        """Return when the next sequence ends, if nothing changes."""
        if not self.goals:
            return None
        return self.at + max(0.0, self.goals[0][0] - self.mark) * (len(self.goals) + HALF) / PEAK


class Contender(Protocol):
    """Who chooses engines."""

    async def acquire(self, request: int, trajectory: Trajectory) -> int:
        """Return the engine of a request."""
        ...

    async def release(self, request: int) -> None:
        """Take note that a request is over."""
        ...


class Follower(Contender, Protocol):
    """A contender that also follows the engines."""

    def follow(self, engines: list[Engine]) -> None:
        """Follow these engines."""
        ...

    async def mark_read(self, request: int) -> None:
        """Take note that the prompt of a request has been read."""
        ...


class Play:
    """One batch with one contender."""

    def __init__(self, contender: Contender | Follower, batch: list[Trajectory]) -> None:
        self.engines = [Engine() for _ in range(ENGINES)]
        self._follower: Any = contender if hasattr(contender, "follow") else None
        if self._follower is not None:
            self._follower.follow(self.engines)
        self.ends: list[float] = []
        self._contender, self._batch = contender, batch
        self._heap: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._order = itertools.count()
        self._seen = PrefixIndex()
        self._seen.limit("all", 1 << 40)
        self.unique = 0

    async def run(self) -> None:
        """Play it."""
        for trajectory in self._batch:
            self._later(0.0, lambda trajectory=trajectory: self._send(trajectory, 0.0))
        while self._heap:
            _, _, happen = heapq.heappop(self._heap)
            await happen()

    def _later(self, at: float, happen: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), happen))

    async def _send(self, trajectory: Trajectory, now: float) -> None:
        request = next(self._order)
        place = await self._contender.acquire(request, trajectory)
        self.unique += len(trajectory.ids) - self._enter(trajectory.ids)
        self.engines[place].waiting.append((trajectory, request))
        await self._start(place, now)

    def _enter(self, ids: list[int]) -> int:
        content = b"".join(token.to_bytes(BYTES_A_TOKEN, "little") for token in ids)
        return self._seen.record_sent("all", None, content) // BYTES_A_TOKEN

    async def _start(self, place: int, now: float) -> None:
        engine = self.engines[place]
        while engine.waiting and engine.held < SLOTS:
            trajectory, request = engine.waiting.popleft()
            engine.held += 1
            missing = len(trajectory.ids) - engine.cache.cached(trajectory.ids)
            engine.cache.add(trajectory.ids)
            engine.computed += missing
            engine.read_until = max(engine.read_until, now) + missing / READ_RATE
            at = engine.read_until
            self._later(at, lambda t=trajectory, r=request, at=at: self._decode(place, t, r, at))

    async def _decode(self, place: int, trajectory: Trajectory, request: int, now: float) -> None:
        engine = self.engines[place]
        engine.advance(now)
        if self._follower is not None:
            await self._follower.mark_read(request)
        heapq.heappush(engine.goals, (engine.mark + trajectory.lengths[trajectory.turn], request, trajectory))
        self._plan(place)

    def _plan(self, place: int) -> None:
        engine = self.engines[place]
        engine.version += 1
        version, at = engine.version, engine.next_end()
        if at is not None:
            self._later(at, lambda: self._end(place, version, at))

    async def _end(self, place: int, version: int, now: float) -> None:
        engine = self.engines[place]
        if version != engine.version:
            return
        engine.advance(now)
        goal, request, trajectory = heapq.heappop(engine.goals)
        engine.mark = max(engine.mark, goal)
        await self._contender.release(request)
        engine.held -= 1
        length, gap = trajectory.lengths[trajectory.turn], trajectory.gaps[trajectory.turn]
        engine.generated += length
        answer = Random(f"{trajectory.name}, {trajectory.turn}")
        trajectory.ids = trajectory.ids + _draw_ids(answer, length)
        engine.cache.add(trajectory.ids)
        self._enter(trajectory.ids)
        trajectory.turn += 1
        if trajectory.turn < len(trajectory.lengths):
            trajectory.ids = trajectory.ids + _draw_ids(answer, TOOL)
            self._later(now + gap, lambda: self._send(trajectory, now + gap))
        else:
            self.ends.append(now)
        self._plan(place)
        await self._start(place, now)
