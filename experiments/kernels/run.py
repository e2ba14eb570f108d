"""Does `evolve` find the fastest variant of ten parallel kernels with fewer programs than fresh samples?

Claim, written on 28 November 2026 before any row: at 8 programs `evolve` ends with the pool's best variant in at least
10 points more of the runs than as many fresh samples; at 32 programs the two differ by less than 10 points. Racy, wrong
and cheating programs are never the answer of either.

Every variant is compiled and run once: its outputs on held-out inputs, the thread sanitizer, and its speed-up in rounds
in which it and the serial program take turns. The searches then run on what was measured, so that no load of the
machine decides between them. The proposer is a script with known odds.

`--idle` times the right variants again, on a machine without other load. The claim for there, of the same day and
before any such row: with two threads the best variant of at least 8 of the 10 kernels is faster than the same program
without threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall
from plait.core.result import Failure, Result, Usage
from plait.core.tools.tool import tool
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.tools.sandbox import Sandbox, SandboxLimits
from plait.workers.tools.sandbox.compiled import run_compiled
from plait_research.planners._compiled import read_finding
from plait_research.planners.evolve import Evolve

from .._tools.machine import machine
from .._tools.statistics import Estimate, difference, mean, share
from .._tools.worker import InProcess, text_of
from .pool import KERNELS, PATH, Kernel

__all__ = ["main", "measure", "page", "search", "speed_up"]

FOLDER = Path(__file__).parent
ROUNDS = 9
LIMITS = SandboxLimits(seconds=240, cpu=200, memory=4096)
FRESH = {"serial": 0.45, "better": 0.18, "parallel": 0.12, "best": 0.03, "racy": 0.12, "wrong": 0.07, "cheat": 0.03}
"""How likely a fresh sample is which variant."""
MENDED = {"racy": "parallel", "wrong": "better", "cheat": "serial"}
STEP = 0.35
"""How likely a proposal with feedback mends its parent: a fault, or the next step of the path."""
BUDGETS = (8, 16, 32)


def speed_up(seconds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the median speed-up of paired runs with its interval by order statistics, at least 95 % for 9 rounds."""
    ratios = sorted(serial / other for serial, other in seconds)
    return median(ratios), ratios[1], ratios[-2]


async def measure(sandbox: Sandbox, name: str, kernel: Kernel) -> list[dict[str, Any]]:
    """Return a row for each variant: what is wrong with it, or its speed-up. Each timed round has an input of its own,
    so that a program gains nothing by keeping an answer."""
    public, small = f"{kernel.size // 40} 1", f"{max(64, kernel.size // 40)} 2"
    timed = [f"{kernel.size} {seed}" for seed in range(3, 3 + ROUNDS)]
    serial = kernel.program("serial")

    async def outputs(program: str, inputs: list[str], **how: Any) -> list[str]:
        done = await run_compiled(sandbox.run, [program], "openmp", inputs, LIMITS, **how)
        texts = [outcome["stderr" if outcome["code"] else "stdout"] for outcome in done["outcomes"]]
        return texts or [done["refused"]]

    wanted = await outputs(serial, [public, small, timed[0]])
    rows: list[dict[str, Any]] = []
    for variant in FRESH:
        program = kernel.program(variant, public, wanted[0].strip())
        wrote = await outputs(program, [public, small, timed[0]])
        (report,) = await outputs(program, [small], check="thread")
        finding = read_finding(report, "openmp")
        row: dict[str, Any] = {"kernel": name, "variant": variant, "failure": "", "public": wrote[0] == wanted[0]}
        row |= {"race": finding is not None, "equal": wrote[1:] == wanted[1:]}
        if finding is not None:
            row["failure"] = finding.describe(program)
        elif not row["equal"]:
            row["failure"] = "The output differs from the serial program's."
        else:
            done = await run_compiled(sandbox.run, [serial, program], "openmp", timed, LIMITS, repeats=1)
            row["speed_up"] = [round(number, 3) for number in speed_up(done["seconds"])]
        rows.append(row)
    return rows


async def measure_idle(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return the speed-ups of each right variant over the serial program, and over the same program without threads,
    from rounds in which all four take turns."""
    rows: list[dict[str, Any]] = []
    for name, kernel in KERNELS.items():
        timed = [f"{kernel.size} {seed}" for seed in range(3, 3 + ROUNDS)]
        programs = [kernel.program(variant) for variant in PATH]
        done = await run_compiled(sandbox.run, programs, "openmp", timed, LIMITS, repeats=1)
        for variant, without in zip(PATH, ("serial", "serial", "serial", "better"), strict=True):
            row: dict[str, Any] = {"kernel": name, "variant": variant}
            for field, base in (("speed_up", "serial"), ("threads", without)):
                pairs = [[seconds[PATH.index(base)], seconds[PATH.index(variant)]] for seconds in done["seconds"]]
                row[field] = [round(number, 3) for number in speed_up(pairs)]
            rows.append(row)
    return rows


class Proposer(InProcess):
    """Writes the name of a variant as the program, by known odds; what it draws depends on seed and call alone."""

    name = "proposer"

    def __init__(self, seed: str) -> None:
        self._seed, self._calls = seed, 0

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        self._calls += 1
        random = Random(f"{self._seed} {self._calls}")
        parent = re.search(r"Improve this program:.*?VARIANT = '([\w-]+)'", text_of(think), re.DOTALL)
        text = written(_next(random, parent[1] if parent else ""))
        yield Result(value=f"```python\n{text}\n```", usage=Usage(completion=60), finish="stop")


def written(variant: str) -> str:
    """Return a text that names a variant: searches compare and print it, and nothing runs it."""
    return f"VARIANT = '{variant}'\ndef kernel():\n    return VARIANT"


def _next(random: Random, parent: str) -> str:
    """Return the variant that is written: by luck, or a step from the parent."""
    if parent and random.random() < STEP:
        return MENDED.get(parent) or PATH[min(PATH.index(parent) + 1, len(PATH) - 1)]
    return random.choices(list(FRESH), list(FRESH.values()))[0]


async def search(rows: Sequence[dict[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """Return, for each kernel, budget and seed, the variant that each way ends with."""
    ended: list[dict[str, Any]] = []
    for name in KERNELS:
        known = {row["variant"]: row for row in rows if row["kernel"] == name}

        @tool
        def evaluate(program: str, stage: int, known: Any = known) -> dict[str, Any]:
            """Judge a program."""
            row = known[program.split("'")[1]]
            return {"score": row["speed_up"][0] if "speed_up" in row else 0.0, "failure": row["failure"]}

        for budget in BUDGETS:
            for seed in range(seeds):
                row: dict[str, Any] = {"kernel": name, "budget": budget, "seed": seed}
                ways = (("evolve", Evolve(n=2, rounds=budget // 2)), ("fresh", Evolve(n=budget, rounds=1)))
                for way, planner in ways:
                    worker = Proposer(f"{name} {budget} {seed} {way}")
                    problem = json.dumps({"prompt": f"Make the kernel {name} faster.", "entry": "kernel"})
                    async with AsyncOrchestrator(workers=[worker], tools=[evaluate], journal="off", seed=seed) as it:
                        answer = await it.run(problem, task="code", planner=planner)
                    row[way] = str(answer.answer).split("'")[1]
                ended.append(row)
    return ended


def page(data: dict[str, Any]) -> str:
    """Return the page."""
    pool, ended = data["pool"], data["search"]
    text = _HEAD.format(rounds=ROUNDS, machine="  \n".join(data["machine"]), seeds=data["seeds"])
    text += "| kernel | " + " | ".join(f"`{variant}`" for variant in FRESH) + " |\n|" + "---|" * (len(FRESH) + 1) + "\n"
    for name in KERNELS:
        text += f"| {name} | " + " | ".join(_cell(row) for row in pool if row["kernel"] == name) + " |\n"
    racy = [row for row in pool if row["variant"] == "racy"]
    text += _POOL.format(
        found=sum(row["race"] for row in racy), racy=len(racy), silent=sum(row["equal"] for row in racy),
        others=sum(row["race"] for row in pool if row["variant"] != "racy"), rest=len(pool) - len(racy),
        cheats=_cheats(pool),
        slower=sum(_speed(pool, name, many) < _speed(pool, name, one) for name, one, many in _pairs()),
        parallel=len(_pairs()),
    )  # fmt: skip
    text += (idle_section(data["idle"]) if "idle" in data else "") + _SEARCH.format(
        better=FRESH["better"], best=FRESH["best"], step=STEP, seeds=data["seeds"]
    )
    gaps: dict[int, Estimate] = {}
    faults = 0
    for budget in data["budgets"]:
        rows = [row for row in ended if row["budget"] == budget]
        hits = {way: [float(row[way] == _best(pool, row["kernel"])) for row in rows] for way in ("evolve", "fresh")}
        gains = {way: mean([_speed(pool, row["kernel"], row[way]) for row in rows]) for way in ("evolve", "fresh")}
        faulty = sum("speed_up" not in _find(pool, row["kernel"], row[way]) for row in rows for way in hits)
        gap = difference(hits["evolve"], hits["fresh"])
        shares = [share(hits[way]).percent() for way in hits]
        text += f"| {budget} | {' | '.join(shares)} | {gap.points()} | "
        text += " | ".join(gains[way].number() for way in gains) + f" | {faulty} of {2 * len(rows)} |\n"
        gaps[budget], faults = gap, faults + faulty
    few, many = gaps[BUDGETS[0]], gaps[BUDGETS[-1]]
    return text + _FOOT.format(
        few="Shown" if few.low >= 0.1 else "Not shown", low=100 * few.low,
        many="shown" if max(-many.low, many.high) < 0.1 else "not shown", sound="shown" if not faults else "not shown",
    )  # fmt: skip


def idle_section(idle: dict[str, Any]) -> str:
    """Return the part of the page about an idle machine."""
    rows = {(row["kernel"], row["variant"]): row for row in idle["rows"]}
    text = _IDLE.format(machine="  \n".join(idle["machine"]), rounds=ROUNDS)
    for name in KERNELS:
        cells = [rows[name, variant]["speed_up"] for variant in PATH[1:]]
        cells += [rows[name, variant]["threads"] for variant in ("parallel", "best")]
        text += f"| {name} | " + " | ".join("{:.2f} ({:.2f}–{:.2f})".format(*cell) for cell in cells) + " |\n"
    faster = {each: sum(rows[name, each]["threads"][1] > 1 for name in KERNELS) for each in ("parallel", "best")}
    shown = "Shown" if faster["best"] >= 8 else "Not shown"
    return text + _IDLE_FOOT.format(**faster, kernels=len(KERNELS), shown=shown)


def _find(pool: Sequence[dict[str, Any]], kernel: str, variant: str) -> dict[str, Any]:
    return next(row for row in pool if (row["kernel"], row["variant"]) == (kernel, variant))


def _speed(pool: Sequence[dict[str, Any]], kernel: str, variant: str) -> float:
    return float(_find(pool, kernel, variant).get("speed_up", [0.0])[0])


def _best(pool: Sequence[dict[str, Any]], kernel: str) -> str:
    return max(FRESH, key=lambda variant: _speed(pool, kernel, variant))


def _cell(row: dict[str, Any]) -> str:
    if row["race"]:
        return "race" + ("" if row["equal"] else ", wrong")
    return "{:.2f} ({:.2f}–{:.2f})".format(*row["speed_up"]) if "speed_up" in row else "wrong"


def _pairs() -> list[tuple[str, str, str]]:
    """Return each kernel's programs without and with threads."""
    return [(name, *pair) for name in KERNELS for pair in (("serial", "parallel"), ("better", "best"))]


def _cheats(pool: Sequence[dict[str, Any]]) -> str:
    cheats = [row for row in pool if row["variant"] == "cheat"]
    public, hidden = (sum(row[which] for row in cheats) for which in ("public", "equal"))
    return f"{public} of {len(cheats)} pass the public case and {hidden} the held-out ones"


_HEAD = """# Parallel kernels: feedback beside fresh samples

`python -m experiments kernels --seeds {seeds}`

{machine}

Ten kernels in C++ with OpenMP, seven variants each: a slow serial one, one with a better order or algorithm, a parallel
one of each, a racy one, a wrong one, and a cheat that writes the public answer down. Variants run on inputs of other
seeds than the public one. A speed-up is the median over {rounds} inputs, on which the serial program and the variant
take turns, with the interval from the second to the last but one (96 %). It counts only if all outputs equal the serial
program's and the thread sanitizer finds no race.

"""
_POOL = """
The sanitizer reports a race in {found} of {racy} racy variants, and in {others} of the {rest} others. {silent} racy
variants wrote what the serial program writes. Of the cheats, {cheats}.
A race between two sections stays unseen if one thread runs both.

Where other work loads both cores, a second thread gains nothing and waiting costs: {slower} of {parallel} parallel
programs are slower than the same program without threads. These figures say nothing about an idle machine.
"""
_IDLE = """
## On an idle machine

`python -m experiments kernels --idle`

{machine}

The serial program and its three right variants take turns on {rounds} inputs. *Threads*: beside the same program
without threads.

| kernel | `better` | `parallel` | `best` | threads: `parallel` | threads: `best` |
|---|---|---|---|---|---|
"""
_IDLE_FOOT = """
With two threads `parallel` is faster than without in {parallel} of {kernels} kernels and `best` in {best} of {kernels}
(the interval begins above 1). The claim, written before any of these rows: `best` in at least 8. **{shown}**.
"""
_SEARCH = """
## The search

The proposer is a script. A fresh sample is `better` in {better:.0%} of cases and `best` in {best:.0%}. Shown a parent
with its failure, it mends the fault or goes one step to the right in the table with probability {step:.0%}, and else
writes a fresh sample. `evolve` has 2 islands. Runs: ten kernels, {seeds} seeds each. Brackets hold 95 % intervals.
*Best found*: the answer is the fastest right variant of the table above.

| programs | best found: `evolve` | fresh | difference | speed-up: `evolve` | fresh | faulty answers |
|---|---|---|---|---|---|---|
"""
_FOOT = """
The claim, written before any row: at 8 programs `evolve` finds the best in at least 10 points more of the runs.
**{few}**: the interval begins at {low:+.1f}. At 32 programs they differ by less than 10 points: **{many}**. No answer
has a fault: **{sound}**. This shows the search and not a model. Both ways see the speed-ups of the first table.
"""


def _machine(load: Sequence[float]) -> list[str]:
    return [machine(), f"Load average at the beginning and at the end: {load[0]:.1f}, {load[1]:.1f}."]


async def _measure_all(seeds: int) -> dict[str, Any]:
    sandbox, load = Sandbox("process"), [os.getloadavg()[0]]
    pool = [row for name, kernel in KERNELS.items() for row in await measure(sandbox, name, kernel)]
    load.append(os.getloadavg()[0])
    return {"machine": _machine(load), "seeds": seeds, "budgets": BUDGETS, "pool": pool}


def main() -> None:
    """Measure the pool (needs g++), run the searches and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments kernels", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--report", action="store_true", help="Write the page of what was measured.")
    parser.add_argument("--search", action="store_true", help="Run the searches on what was measured.")
    parser.add_argument("--idle", action="store_true", help="Time the right variants on a machine without other load.")
    given = parser.parse_args()
    kept = FOLDER / "data" / "rows.json"
    known = json.loads(kept.read_text("utf-8")) if given.report or given.search or given.idle else {}
    data = known or asyncio.run(_measure_all(given.seeds))
    if given.idle:
        load = [os.getloadavg()[0]]
        rows = asyncio.run(measure_idle(Sandbox("process")))
        data["idle"] = {"machine": _machine([*load, os.getloadavg()[0]]), "rows": rows}
        kept.write_text(json.dumps(data) + "\n", encoding="utf-8")
        sys.stdout.write(idle_section(data["idle"]))
    elif not given.report:
        data |= {"seeds": given.seeds, "search": asyncio.run(search(data["pool"], given.seeds))}
        kept.write_text(json.dumps(data) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(page(json.loads(kept.read_text("utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
