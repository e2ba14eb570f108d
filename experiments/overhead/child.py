"""One measurement of a step through the SDK, in a process of its own: `python overhead_child.py PACKAGE WHAT SIZE`.

Prints CPU time a step in microseconds (median of several runs of one plan), and the peak of the memory in MiB. Runs
against the checkout that stands first on the path: `PACKAGE` is `plait`, or `orchestrator` for an older one. `WHAT` is
`fan` (1→SIZE→1), `chain` or `layers` (SIZE steps in layers of 50, each needing two of the layer before), with
`+journal` for the default journal.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import resource
import statistics
import sys
import tempfile
import time
from typing import Any

LAYER = 50


def needs(what: str, size: int) -> list[tuple[int, ...]]:
    """Return the needs of each step, by number; the join that needs the last ones is left out."""
    if what == "chain":
        return [() if i == 0 else (i - 1,) for i in range(size)]
    if what == "fan":
        return [(), *[(0,) for _ in range(size)]]
    above = [[i - LAYER, i - i % LAYER - LAYER + (i + 1) % LAYER] for i in range(size)]
    return [() if i < LAYER else tuple(sorted(above[i])) for i in range(size)]


def plan_of(core: Any, edges: list[tuple[int, ...]]) -> Any:
    """Return the plan of calls of `nothing`, and a join of the unneeded ones."""
    wanted = {need for each in edges for need in each}
    call = core.ToolCall if hasattr(core, "ToolCall") else core.Call  # its name in older checkouts
    steps = [
        core.Step(name=f"s{i}", op=call(tool="nothing"), needs=tuple(f"s{need}" for need in each))
        for i, each in enumerate(edges)
    ]
    ends = tuple(f"s{i}" for i in range(len(edges)) if i not in wanted)
    return core.Plan(steps=(*steps, core.Step(name="last", op=core.Join(), needs=ends)), output="last")


async def measure(package: str, what: str, size: int) -> tuple[float, float]:
    """Return CPU microseconds a step, and MiB."""
    core = importlib.import_module(package)

    @core.tool
    async def nothing() -> None:
        """Do nothing."""

    what, _, journal = what.partition("+")
    plan = plan_of(core, needs(what, size))
    figures: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = core.Config(journal=f"{folder}/journal" if journal else "off")
        async with core.AsyncOrchestrator(workers=[], tools=[nothing], config=config) as orchestrator:
            repeats = max(1, min(20, 6_000 // size))
            for number in range(repeats + (repeats > 1)):
                gc.collect()
                start = time.process_time()
                answer = await orchestrator.run(plan=plan)
                seconds = time.process_time() - start
                assert answer.status == "done", answer
                if number or repeats == 1:
                    figures.append(seconds / len(plan.steps) * 1e6)
    return statistics.median(figures), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
