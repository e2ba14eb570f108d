"""Where and in which order should steps run when engines are busy? Simulated.

Where and in which order steps run when engines are busy: policies at 50, 80 and 95 % load, on simulated engines.

Four engines of 16 slots at 1, 1, 1/2 and 1/4 of a speed. Runs come as a Poisson process: single answers, votes of four,
and trees of three levels (two thoughts, each continued by two), lengths exponential. Load is the share of the tokens a
second that all engines make with full slots. Each run has 8 seconds times its levels; deadlines are also measured
with the budget that ends runs which are late. Medians of three seeds, which
are the same for every policy; settings were chosen on others (1 to 3, and 11 to 13).
"""

from __future__ import annotations

from statistics import median

from plait.core import Plugin, Request
from plait.core.budget import Budget
from plait_research.simulation.latency import Host, saturating, varied
from plait_research.simulation.workload import WorkloadReport, at_rate, simulate_workload

from .._tools.measure import Row
from .._tools.traffic import DEADLINE, HALF, MOST, PEAK, SHARE, SLOTS, SPEEDS, plans

RUNS, SEEDS = 400, (21, 22, 23)
LOADS = (0.5, 0.8, 0.95)
PLACING = ("round-robin", "least-loaded", "affinity", "predictive")


def play(load: float, seed: int, *policies: str | Plugin, limited: bool = False) -> WorkloadReport:
    """Simulate one seed of the workload."""
    kinds = plans()
    peak = sum(speed * PEAK * SLOTS / (SLOTS + HALF) for speed in SPEEDS)
    tokens = sum(thinks for _, thinks, _ in kinds) / len(kinds) * SHARE * MOST
    hosts = [
        Host(f"engine-{i}", SLOTS, prefill_rate=20_000 * speed, decode_rate=saturating(speed * PEAK, HALF))
        for i, speed in enumerate(SPEEDS)
    ]
    specs = tuple(each if isinstance(each, Plugin) else Plugin(name=each) for each in policies)
    requests = [
        Request(
            planner=Plugin(name="fixed", options={"graph": plan.model_dump(mode="json")}),
            policies=specs,
            fairness_group="all",
            budget=Budget(seconds=seconds) if limited else Budget(),
            seed=seed * 1_000_000,
        )
        for plan, _, seconds in kinds
    ]
    arrivals = at_rate(RUNS, load * peak / tokens, seed=seed)
    return simulate_workload(requests, arrivals, hosts=hosts, outcome=varied(SHARE), seed=seed)


def rows_of(load: float) -> list[Row]:
    """Return the rows of one load: placement, then deadlines."""
    found: dict[str, list[WorkloadReport]] = {name: [play(load, seed, name) for seed in SEEDS] for name in PLACING}
    rows: list[Row] = []
    for name in PLACING:
        gain = [1 - a.latency.p99 / b.latency.p99 for a, b in zip(found[name], found["round-robin"], strict=True)]
        says = f"p50 {_p(found[name], 'p50')}, p99 {_p(found[name], 'p99')}"
        base = f"round-robin p50 {_p(found['round-robin'], 'p50')}, p99 {_p(found['round-robin'], 'p99')}"
        goal = "p99 −40 %" if (name, load) == ("predictive", 0.8) else ""
        rows.append(Row(f"{load:.0%} load, {name}", says, base, f"p99 −{median(gain):.0%} ({min(gain):.0%}…)", goal))
    blind = [play(load, seed, "least-loaded", limited=True).done / RUNS for seed in SEEDS]
    late = Plugin(name="deadline", options={"seconds": DEADLINE})
    for policies in ((late, "least-loaded"), ("predictive",), (late, "predictive")):
        ours = [play(load, seed, *policies, limited=True).done / RUNS for seed in SEEDS]
        name = " + ".join(each if isinstance(each, str) else each.name for each in policies)
        goal = "≥ 1.3" if load == LOADS[-1] else ""
        says, base = f"{median(ours):.1%} in time", f"fifo + least-loaded {median(blind):.1%}"
        rows.append(Row(f"{load:.0%} load, deadlines, {name}", says, base, f"{median(ours) / median(blind):.2f}", goal))
    return rows


def _p(reports: list[WorkloadReport], name: str) -> str:
    return f"{median(getattr(report.latency, name) for report in reports):.1f} s"


async def run() -> list[Row]:
    """Simulate and return the table's rows."""
    return [row for load in LOADS for row in rows_of(load)]
