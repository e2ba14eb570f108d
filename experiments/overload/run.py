"""More runs than the engines can take: what does a bound on those that wait win? Simulated.

More runs than the engines can take, on simulated engines: with a bound on those that wait, and without one.

Two engines of 16 slots; single answers, votes of four and trees of three levels come as a Poisson process and share one
queue. Goodput: runs that end within twelve seconds, a second. Load is the share of what both engines make with full
slots. Medians of three seeds; the bound was chosen on other seeds (11 to 13).
"""

from __future__ import annotations

from statistics import median

from plait.core import Plugin, Request
from plait_research.simulation.latency import Host, saturating, varied
from plait_research.simulation.workload import WorkloadReport, at_rate, simulate_workload

from .._tools.measure import Row
from .._tools.traffic import HALF, MOST, PEAK, SHARE, SLOTS, plans

ENGINES, RUNS, SEEDS = 2, 500, (1, 2, 3)
WITHIN = 12.0
BOUND = 4
LOADS = (1.0, 1.5, 3.0)


def play(
    load: float, seed: int, most: int | None, runs: int = RUNS, share: str = "all"
) -> tuple[float, WorkloadReport]:
    """Simulate one seed; return the goodput, in runs a second, and the whole report."""
    kinds = plans()
    requests = [
        Request(
            planner=Plugin(name="fixed", options={"graph": plan.model_dump(mode="json")}),
            fairness_group=share,
            seed=seed * 1_000_000,
        )
        for plan, _, _ in kinds
    ]
    peak = ENGINES * PEAK * SLOTS / (SLOTS + HALF)
    tokens = sum(thinks for _, thinks, _ in kinds) / len(kinds) * SHARE * MOST
    arrivals = at_rate(runs, load * peak / tokens, seed=seed)
    hosts = [Host(f"engine-{i}", SLOTS, decode_rate=saturating(PEAK, HALF)) for i in range(ENGINES)]
    report = simulate_workload(
        requests, arrivals, hosts=hosts, outcome=varied(SHARE), seed=seed, max_waiting=most, within=WITHIN
    )
    return report.in_time / arrivals[-1], report


async def run() -> list[Row]:
    """Simulate and return the table's rows."""
    rows: list[Row] = []
    full = {most: [play(1.0, seed, most)[0] for seed in SEEDS] for most in (BOUND, None)}
    for load in LOADS:
        bound, free = ([play(load, seed, most) for seed in SEEDS] for most in (BOUND, None))
        kept = [good / at_full for (good, _), at_full in zip(bound, full[BOUND], strict=True)]
        fell = [good / at_full for (good, _), at_full in zip(free, full[None], strict=True)]
        refused = median(report.refused for _, report in bound)
        ours = f"{median(good for good, _ in bound):.2f} in time a second, {refused:.0f} of {RUNS} refused"
        base = f"no bound {median(good for good, _ in free):.2f}, p99 {median(r.latency.p99 for _, r in free):.0f} s"
        ratio = f"{median(kept):.2f} ({min(kept):.2f}–{max(kept):.2f}) of that at 100 %; no bound {median(fell):.2f}"
        rows.append(Row(f"{load:.0%} load, at most {BOUND} wait", ours, base, ratio, "≥ 0.90" if load > 1 else ""))
    return rows
