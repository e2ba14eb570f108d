"""The calibrated simulator against the engine: held-out runs of the bundled model, twelve configurations.

    python -m benchmarks.calibration [--folder FOLDER]

A probe is recorded and a profile fitted to it (`plait calibrate --probe`). Then puzzles are solved on the same engine
by votes of 1, 2, 4 and 8 at 2, 6 and 18 puzzles at a time, none of which the fit has seen, and simulated with the
lengths that they had. Figures: the error of the makespan and of the p99 of runs, and Kendall's τ between the measured
and the simulated order of the configurations by answers a second. The machine should be quiet.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import kendalltau

from plait import AsyncOrchestrator
from plait.apps.commands.calibrate import compared, probe
from plait.core import Plugin
from plait.runtime.client.config import Config
from plait.runtime.simulation.calibrate import fit, recorded

WIDTHS, TOGETHER, PUZZLES = (1, 2, 4, 8), (2, 6, 18), 18


async def measured(config: Config, journal: Path) -> dict[tuple[int, int], list[str]]:
    """Solve the puzzles in every configuration; return the ids of the runs."""
    runs: dict[tuple[int, int], list[str]] = {}
    async with AsyncOrchestrator(config=config.model_copy(update={"journal": journal})) as orchestrator:
        for width in WIDTHS:
            for together in TOGETHER:
                gate = asyncio.Semaphore(together)

                async def solve(i: int, width: int = width, gate: asyncio.Semaphore = gate) -> str:
                    async with gate:
                        planner = Plugin(name="sample", options={"n": width, "max_tokens": 200})
                        numbers = f"{2 + i % 7} {3 + i % 5} {5 + i % 11} {7 + i % 3} -> {20 + i}"
                        answer = await orchestrator.run(numbers, task="countdown", planner=planner, seed=i)
                        return answer.run

                runs[width, together] = list(await asyncio.gather(*map(solve, range(PUZZLES))))
    return runs


def main() -> None:
    """Record, fit, simulate, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep the journals here")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    config = Config(worker="engine")
    print(f"load before: {os.getloadavg()[0]:.1f}")
    asyncio.run(probe(config, folder / "probe.jsonl"))
    runs = asyncio.run(measured(config, folder / "held-out.jsonl"))
    print(f"load after: {os.getloadavg()[0]:.1f}")
    profile = fit(*recorded(folder / "probe.jsonl"), model=config.model)
    print(profile.model_dump_json(exclude={"lengths"}))
    rows: list[dict[str, Any]] = []
    for (width, together), names in runs.items():
        row = compared(folder / "held-out.jsonl", profile, names)
        rows.append(row)
        print(f"votes of {width}, {together} at a time: {row}")
    makespan = fmean(abs(row["makespan_error"]) for row in rows)
    p99 = fmean(abs(row["p99_error"]) for row in rows)
    both = [row["makespan_seconds"] for row in rows], [row["simulated_makespan_seconds"] for row in rows]
    tau: Any = kendalltau(*both)
    print(f"mean errors: makespan {makespan:.1%}, p99 {p99:.1%}; Kendall's τ {tau.statistic:.2f} over {len(rows)}")


if __name__ == "__main__":
    main()
