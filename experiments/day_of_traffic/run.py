"""What do 10^5 runs on 1,024 simulated engines take, in time and memory?

A day of traffic in virtual time: 10^5 runs arrive as a Poisson process at 1,024 simulated engines of 8 slots.

    python -m experiments day_of_traffic [--runs 100000] [--engines 1024] [--load 0.8]

One machine, one clock, every run a vote of four samples whose lengths vary. The rate is chosen so that the engines are
as busy as `--load` says. CPU seconds, wall seconds and the largest memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import time

from plait.core.ops import Plugin
from plait.core.request import Request
from plait_research.simulation.latency import Host, varied
from plait_research.simulation.workload import at_rate, simulate_workload

SLOTS, SAMPLES, DECODE = 8, 4, 50.0
LENGTH = 150.0
"""Mean tokens of a sample: about 0.3 of its limit of 512."""


def main() -> None:
    """Simulate, and print what it took and what it came to."""
    parser = argparse.ArgumentParser(prog="python -m experiments day_of_traffic", description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--engines", type=int, default=1024)
    parser.add_argument("--load", type=float, default=0.8)
    options = parser.parse_args()
    rate = options.load * options.engines * SLOTS * DECODE / (SAMPLES * LENGTH)
    request = Request(text="What is it?", planner=Plugin(name="sample", options={"n": SAMPLES}))
    hosts = [Host(f"engine-{i}", slots=SLOTS, decode_rate=DECODE) for i in range(options.engines)]
    wall, cpu = time.perf_counter(), time.process_time()
    report = simulate_workload(request, at_rate(options.runs, rate), hosts=hosts, outcome=varied(0.3))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{report.runs:,} runs ({rate:.0f} a second), {report.steps:,} steps, {options.engines:,} engines")
    print(f"took {wall:.0f} s ({cpu:.0f} s of CPU, {cpu / report.steps * 1e6:.0f} µs a step), {memory:.0f} MiB at most")
    spread = report.latency
    print(
        f"makespan {report.makespan:.0f} s; latency p50 {spread.p50:.2f} s, p90 {spread.p90:.2f} s, "
        f"p99 {spread.p99:.2f} s; {report.throughput:.0f} runs/s; {report.utilisation:.0%} of the slots busy; "
        f"{report.usage.cancelled:,} of {report.usage.completion:,} tokens cancelled"
    )
