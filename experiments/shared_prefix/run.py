"""What does placement by shared beginnings save, on four simulated engines?

Runs that share headers of 2,000 tokens, on four simulated engines; and the index that tells who has them cached.

Each run is one request: a header, 50 tokens of its own, and about 60 tokens of answer. `affinity` places by what all
runs were sent (`core/prefix_index.py`), `least-loaded` by load alone. Engines have 32 slots and a cache of 16,000
tokens, so that eight headers fit into one. The index is measured with 10⁶ blocks of 16 tokens in it.
"""

from __future__ import annotations

import time
import tracemalloc
from random import Random
from statistics import median

from plait.core import Plugin, Request
from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from plait_research.simulation.latency import Host, varied
from plait_research.simulation.workload import WorkloadReport, at_rate, simulate_workload

from .._tools.measure import Row

ENGINES, SLOTS, CACHE = 4, 32, 16_000
HEADER, OWN, MOST = 2_000, 50, 200
RUNS = 200
SEEDS = (9, 21, 22, 23)
"""Of the lengths, and of the order in which the requests are mixed; settings were chosen on others (1 to 4, and 7)."""
BLOCK = 16


def words(name: str, tokens: int) -> str:
    """Return a text of `n` tokens that shares no piece with one of another name."""
    rng = Random(name)
    return "".join(f"{rng.getrandbits(16):04x}" for _ in range(tokens))


def requests(headers: int, tokens: int, policy: Plugin, seed: int) -> list[Request]:
    """Return requests that share some headers, each with a part of its own; in an order that mixes them."""
    heads = [words(f"header {i}", tokens) for i in range(headers)]
    texts = [heads[i % headers] + words(f"own {i}", OWN) for i in range(RUNS)]
    Random(seed).shuffle(texts)
    planner = Plugin(name="single", options={"answer": {"max_tokens": MOST}})
    return [Request(text=text, planner=planner, policies=(policy,)) for text in texts]


def play(
    headers: int, tokens: int, policy: str, rate: float | None, seed: int, **options: int | float
) -> WorkloadReport:
    """Simulate one seed of the workload with one policy."""
    hosts = [Host(f"engine-{i}", SLOTS, cache_tokens=CACHE) for i in range(ENGINES)]
    asked = requests(headers, tokens, Plugin(name=policy, options=dict(options)), seed)
    report = simulate_workload(asked, at_rate(RUNS, rate), hosts=hosts, outcome=varied(0.3), seed=seed)
    assert report.done == RUNS, report.failure
    return report


def ratio(report: WorkloadReport) -> float:
    """Return prompt tokens computed ÷ unique."""
    return report.prompt_computed / report.prompt_unique


def sharing() -> list[Row]:
    """Return rows of several kinds of sharing, all runs at once and as they come."""
    rows: list[Row] = []
    cases = (
        ("20 headers", 20, HEADER, "≥ 1.5 tokens/s, ≤ 1.10 computed"),
        ("one header", 1, HEADER, "load guard: not below 1"),
        ("no header", 200, 0, "≥ 0.97"),
    )
    for name, headers, tokens, goal in cases:
        for how, rate in (("all at once", None), ("80 a second", 80.0)):
            ours = [play(headers, tokens, "affinity", rate, seed) for seed in SEEDS]
            base = [play(headers, tokens, "least-loaded", rate, seed) for seed in SEEDS]
            what = f"{RUNS} requests, {name}, {how}"
            rows.append(Row(what, _said(ours), _said(base), _gain(ours, base), goal))
    free, guarded = (
        [play(1, HEADER, "affinity", None, seed, **options) for seed in SEEDS] for options in ({"slack": 10_000}, {})
    )
    rows.append(Row("one hot header, with the guard", _said(guarded), f"no guard {_said(free)}", _gain(guarded, free)))
    return rows


def _gain(ours: list[WorkloadReport], base: list[WorkloadReport]) -> str:
    """Return the ratio of tokens per second: the median of the seeds, and the least and the most."""
    gains = [a.tokens_per_second / b.tokens_per_second for a, b in zip(ours, base, strict=True)]
    return f"{median(gains):.2f} ({min(gains):.2f}–{max(gains):.2f}) tokens/s"


def _said(reports: list[WorkloadReport]) -> str:
    """Return the medians of the seeds."""
    tokens, computed = median(each.tokens_per_second for each in reports), median(map(ratio, reports))
    p50, p99 = (median(getattr(each.latency, name) for each in reports) for name in ("p50", "p99"))
    return f"{tokens:,.0f} tokens/s, computed ÷ unique {computed:.2f}, p50 {p50:.2f} s, p99 {p99:.2f} s"


def index() -> list[Row]:
    """Return the time of a lookup in an index of 10⁶ blocks over eight workers, and its memory."""
    rng, contexts = Random(3), 10_000
    size = BLOCK * BYTES_A_TOKEN
    heads = [rng.randbytes(50 * size) for _ in range(contexts // 20)]
    asked = [heads[rng.randrange(len(heads))] + rng.randbytes(50 * size) for _ in range(2_000)]
    tracemalloc.start()
    found = PrefixIndex()
    for i in range(8):
        found.limit(f"worker-{i}", 1 << 30)
    held = blocks = 0
    while blocks < 1_000_000:
        content = heads[held % len(heads)] + rng.randbytes(100 * size)
        blocks += (len(content) - found.record_sent(f"worker-{held % 8}", "model", content)) // size
        held += 1
    memory = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    times: list[float] = []
    for content in asked:
        began = time.perf_counter()
        found.held_bytes("model", content)
        times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    begun = time.process_time()
    for i, content in enumerate(asked):
        found.record_sent(f"worker-{i % 8}", "model", content)
    entered = (time.process_time() - begun) / len(asked) * 1e6
    says = f"median {times[len(times) // 2]:.1f} µs, p99 {times[int(0.99 * len(times))]:.1f} µs; {memory:.0f} MiB"
    return [
        Row("lookup among 10⁶ blocks, prompts of 1,600 tokens", says, f"entering one {entered:.0f} µs", "", "≤ 50 µs")
    ]


async def run() -> list[Row]:
    """Measure and return the table's rows."""
    return [*sharing(), *index()]
