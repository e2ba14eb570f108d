"""Drivers in processes of their own over the same stub engines: what they read again, and how long a run takes.

    python -m experiments.drivers.sharing --store postgresql://… [--rounds 2]

A run is a vote of four behind a header that others have too (Zipf) and a question of its own. Four drivers get a
quarter of the arrivals each; they know nothing of one another, agree by a hash and divide slots, or share their load
and follow all caches (`share_load`). One driver with all arrivals is the index that all would share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

ENGINES, DRIVERS, SLOTS, SECONDS = 4, 4, 64, 40.0
HEADER, HEADERS, RATE = 800, 80, 1.0
"""Tokens of a header, number of headers, runs a second of all drivers together."""
AGREED: dict[str, Any] = {"share_slots": True, "policies": ["affinity:agree=true"]}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "each driver alone": (DRIVERS, {"policies": ["affinity"]}),
    "agreed, slots divided": (DRIVERS, AGREED),
    "`share_load`, caches followed": (DRIVERS, {**AGREED, "share_load": True, "kv_events": ""}),
    "one driver": (1, {"policies": ["affinity"]}),
}


def arrivals(runs: int, seed: int) -> list[tuple[float, int, str]]:
    """Return the runs of a round: time, number, prompt. All ways get the same."""
    rng = Random(seed)
    weights = [1 / (rank + 1) for rank in range(HEADERS)]
    rows: list[tuple[float, int, str]] = []
    at = 0.0
    for number in range(runs):
        at += rng.expovariate(RATE)
        (rank,) = rng.choices(range(HEADERS), weights)
        header = " ".join(f"h{rank}w{word}" for word in range(HEADER))
        rows.append((at, number, f"{header} " + " ".join(f"q{number}w{word}" for word in range(40))))
    return rows


async def drive(store: str, fields: dict[str, Any], mine: int, of: int, runs: int, seed: int) -> None:
    """Be one driver: print a line, read the start time, do a part of the runs as they arrive, print their seconds."""
    from plait import AsyncOrchestrator, Config

    rows = [row for row in arrivals(runs, seed) if Random(f"{seed} {row[1]}").randrange(of) == mine]
    fields = {**fields, "journal": store, "pool": "drivers", "worker": "http", "slots": SLOTS}
    seconds: list[float] = []
    async with AsyncOrchestrator(config=Config(**fields)) as orchestrator:
        await orchestrator.start()
        print("ready", flush=True)
        start = float(await asyncio.to_thread(sys.stdin.readline))

        async def run(at: float, text: str) -> None:
            await asyncio.sleep(start + at - time.time())
            due = start + at
            answer = await orchestrator.run(text, task="plain", planner="sample:n=4")
            assert answer.status == "done", answer.failure
            seconds.append(time.time() - due)

        await asyncio.gather(*(run(at, text) for at, _, text in rows))
    print(json.dumps(seconds))


def measure(store: str, way: str, runs: int, seed: int) -> dict[str, Any]:
    """Do the runs of a round one way, on new engines."""
    drivers, fields = WAYS[way]
    here = Path(__file__)
    with subprocess.Popen(
        [sys.executable, str(here.with_name("engines.py")), str(ENGINES), str(SECONDS)],
        stdout=subprocess.PIPE,
        text=True,
    ) as engines:
        assert engines.stdout is not None
        there = json.loads(engines.stdout.readline())
        fields = {**fields, "base_url": ",".join(there["urls"])}
        if "kv_events" in fields:
            fields["kv_events"] = ",".join(there["events"])
        command = [sys.executable, "-m", "experiments.drivers.sharing", "--drive", store, json.dumps(fields)]
        children = [
            subprocess.Popen(
                [*command, *map(str, (mine, drivers, runs, seed))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for mine in range(drivers)
        ]  # fmt: skip
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        start = f"{time.time() + 1.0}\n"
        seconds = sorted(each for child in children for each in json.loads(child.communicate(start)[0]))
        with urllib.request.urlopen(there["urls"][0].replace("/v1", "/stats")) as answer:
            counts = json.load(answer)
        engines.kill()
    p50, p99 = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    read = counts["computed"] / counts["unique"]
    return {"way": way, "seed": seed, "runs": len(seconds), **counts, "computed ÷ unique": read, "p50": p50, "p99": p99}


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page: medians, with the least and most of the rounds."""
    alone = {row["seed"]: row["computed"] for row in rows if row["way"] == next(iter(WAYS))}

    def spread(values: list[float], form: str) -> str:
        return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"

    lines = ["| drivers | n | computed ÷ unique | saved, % | p50, s | p99, s |", "|---|---|---|---|---|---|"]
    for way in WAYS:
        mine = [row for row in rows if row["way"] == way]
        saved = [100 * (1 - row["computed"] / alone[row["seed"]]) for row in mine]
        cells = [spread([row["computed ÷ unique"] for row in mine], ".2f"), spread(saved, ".1f")]
        cells += [spread([row[name] for row in mine], ".1f") for name in ("p50", "p99")]
        lines.append(f"| {way} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a row of JSON for each round and way, then the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.drivers.sharing", description=__doc__)
    parser.add_argument("--store", metavar="URL", help="a PostgreSQL database")
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--drive", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        store, fields, *numbers = given.drive
        asyncio.run(drive(store, json.loads(fields), *map(int, numbers)))
        return
    rows: list[dict[str, Any]] = []
    for seed in range(1, given.rounds + 1):
        for way in WAYS:
            rows.append(measure(given.store, way, given.runs, seed))
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    print(table_of(rows))


if __name__ == "__main__":
    main()
