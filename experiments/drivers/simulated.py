"""Many drivers over many engines in virtual time: a queue for each engine, and what each driver knows of it.

A run is four samples of one prompt: a header that others have too (Zipf), and a question of its own. It comes to a
driver at random, as behind a balancer, and goes to one engine. A driver knows what it has sent itself, and nothing
else. An engine keeps the headers that it read last.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal, get_args

Way = Literal[
    "least loaded", "own index", "agreed", "agreed, slots divided", "caches followed", "caches and load, 1 s old",
    "caches and load, 0.2 s old", "shared by all",
]  # fmt: skip
WAYS: tuple[Way, ...] = get_args(Way)
"""By the fewest runs of its own there; by what it has sent where; the same, and a new header where its hash says; that
and a part of each engine's slots; by each engine's events of its cache; by these, each engine's load and a part of its
slots; all drivers know what all have sent, at once."""
LOAD_AGES_S: dict[Way, float] = {"caches and load, 1 s old": 1.0, "caches and load, 0.2 s old": 0.2}
"""Seconds between two readings of the engines' load by one driver."""

SLOTS, SAMPLES = 64, 4
HEADER, QUESTION, ANSWER = 2_000, 100, 200
"""Tokens."""
PREFILL, DECODE = 8_000.0, 40.0
"""Tokens a second: of a prompt that is read, of each sequence that is written."""
KEPT = 100
"""Headers in the cache of an engine: 200,000 tokens."""
HEADERS_AN_ENGINE = 20
"""How many headers there are, for each engine."""
LOAD = 0.7
"""Share of all slots that are busy, if every header is cached."""


@dataclass(slots=True)
class Engine:
    """One engine."""

    cache: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])
    busy: int = 0
    waiting: deque[tuple[float, int, int]] = field(default_factory=deque[tuple[float, int, int]])


@dataclass(slots=True)
class Driver:
    """What one driver knows."""

    running: list[int]
    """Its own runs, by engine."""
    sent: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Engines that it has sent a header to."""
    others: list[int] = field(default_factory=list[int])
    """The runs of other drivers, by engine, when it read the load last."""
    read_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way of placing came to."""

    read: float
    """Header tokens that engines read, for each run, ÷ those of a header."""
    once: float
    """The least that could be: each header read once, for each run."""
    p50: float
    p99: float
    """Seconds of a run."""
    waited: float
    """Share of the runs that waited for a slot at their engine."""


def simulated(drivers: int, engines: int, runs: int, way: Way, seed: int = 1) -> Outcome:
    """Simulate a number of runs."""
    rng = Random(seed)
    headers = HEADERS_AN_ENGINE * engines
    weights = [1 / (rank + 1) for rank in range(headers)]
    drawn = rng.choices(range(headers), weights, k=runs)
    agreed = [rng.randrange(engines) for _ in range(headers)]  # what rendezvous hashing comes to
    pool = [Engine() for _ in range(engines)]
    known = [Driver([0] * engines) for _ in range(drivers)]
    if way == "shared by all":
        for other in known[1:]:
            other.sent, other.running = known[0].sent, known[0].running
    slots = SLOTS // drivers if way == "agreed, slots divided" or way in LOAD_AGES_S else SLOTS
    rate = LOAD * engines * SLOTS / (SAMPLES * (QUESTION / PREFILL + ANSWER / DECODE))
    now, ends, latencies = 0.0, list[tuple[float, int, int, float]](), list[float]()
    read = waits = 0
    holders: dict[int, dict[int, None]] = {}
    """The engines that have a header in their cache."""

    def start(engine: int, header: int, driver: int, came: float) -> None:
        nonlocal read
        place = pool[engine]
        place.busy += SAMPLES
        fresh = header not in place.cache
        read += fresh
        place.cache[header] = None
        place.cache.move_to_end(header)
        holders.setdefault(header, {})[engine] = None
        if len(place.cache) > KEPT:
            gone, _ = place.cache.popitem(last=False)
            del holders[gone][engine]
        seconds = (QUESTION + fresh * HEADER) / PREFILL + ANSWER / DECODE
        heapq.heappush(ends, (now + seconds, engine, driver, came))

    def end() -> None:
        nonlocal now
        now, engine, driver, came = heapq.heappop(ends)
        place = pool[engine]
        place.busy -= SAMPLES
        known[driver].running[engine] -= SAMPLES
        latencies.append(now - came)
        if place.waiting:
            start(engine, *_turned(place.waiting.popleft()))

    came = 0.0
    for header in drawn:
        came = came + rng.expovariate(rate)
        while ends and ends[0][0] <= came:
            end()
        now = came
        number = rng.randrange(drivers)
        driver = known[number]
        if now - driver.read_at >= LOAD_AGES_S.get(way, math.inf):
            driver.read_at = now
            driver.others = [
                place.busy + SAMPLES * len(place.waiting) - own for place, own in zip(pool, driver.running, strict=True)
            ]
        if way.startswith("caches"):
            driver.sent[header] = [*holders.get(header, ())]
        engine = placed(driver, header, way, agreed[header], slots, rng)
        driver.running[engine] += SAMPLES
        if pool[engine].busy + SAMPLES <= SLOTS:
            start(engine, header, number, came)
        else:
            waits += 1
            pool[engine].waiting.append((came, header, number))
    while ends:
        end()
    latencies.sort()
    least = len(set(drawn)) / runs
    return Outcome(read / runs, least, latencies[runs // 2], latencies[runs * 99 // 100], waits / runs)


def _turned(waiting: tuple[float, int, int]) -> tuple[int, int, float]:
    came, header, driver = waiting
    return header, driver, came


def placed(driver: Driver, header: int, way: Way, agreed: int, slots: int, rng: Random) -> int:
    """Return the engine that a driver chooses, by the rules of the policy `affinity`: where the header is known to be,
    unless that is overloaded; else the less loaded of two."""

    def load(engine: int) -> int:
        return driver.running[engine] + (driver.others[engine] if driver.others else 0)

    one, other = rng.randrange(len(driver.running)), rng.randrange(len(driver.running))
    idlest = one if load(one) <= load(other) else other
    if way == "least loaded":
        return idlest
    there = driver.sent.get(header)
    if not there:
        there = driver.sent[header] = [agreed] if way.startswith("agreed") else [idlest]
    best = min(there, key=load)
    if load(best) > 2 * load(idlest) + slots // 4:
        there.append(idlest)
        return idlest
    return best
