"""What do several drivers cost over one store, and what do they lose by not knowing of one another?

`python -m experiments drivers --store postgresql://…` counts: 1, 2 and 4 processes do runs of four samples, journalled
in one PostgreSQL on this machine; CPU seconds of the drivers and of the database, events and rows. Without `--store`
many drivers are simulated over many engines in virtual time (`simulated.py`), to 64 drivers, 1,024 engines and a
million runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .simulated import WAYS, simulated

COUNTS = (1, 2, 4)
SIZES = ((1, 16, 10_000), (4, 64, 100_000), (16, 256, 200_000), (64, 1024, 1_000_000))
TICK = os.sysconf("SC_CLK_TCK")


def counted(store: str, drivers: int, runs: int) -> dict[str, float]:
    """Let some drivers do a number of runs each; return the cost of each run."""
    import psycopg

    with psycopg.connect(store, autocommit=True) as db:
        before, used = _sizes(db), _server_cpu(db)
        command = [sys.executable, str(Path(__file__).with_name("child.py")), store, str(runs)]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(drivers)]
        own = [float(json.loads(child.communicate()[0])) for child in children]
        after, all_runs = _sizes(db), drivers * (runs + 1)
        server = _server_cpu(db) - used
    events, rows, size = (now - then for now, then in zip(after, before, strict=True))
    return {
        "drivers": drivers,
        "runs": all_runs,
        "events a run": events / all_runs,
        "rows a run": rows / all_runs,
        "bytes a run": size / all_runs,
        "driver ms a run": 1000 * sum(own) / (drivers * runs),
        "events a CPU second of a driver": events / all_runs * drivers * runs / sum(own),
        "database ms a run": 1000 * server / all_runs,
        "rows a CPU second of the database": rows / server,
    }


def _sizes(db: Any) -> tuple[int, int, int]:
    tables = ("events", "runs", "marks", "notes", "sessions")
    counts = [db.execute(f"SELECT count(*) FROM plait.{table}").fetchone()[0] for table in tables] if _made(db) else [0]
    return counts[0], sum(counts), db.execute("SELECT pg_database_size(current_database())").fetchone()[0]


def _made(db: Any) -> bool:
    return db.execute("SELECT to_regclass('plait.events')").fetchone()[0] is not None


def _server_cpu(db: Any) -> float:
    """Return the CPU seconds of a server on this machine: of its first process, those that ended, and those alive."""
    parent = int(_stat(db.info.backend_pid)[1])
    seconds = sum(map(int, _stat(parent)[11:15]))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = _stat(int(entry.name))
            except OSError:
                continue
            seconds += sum(map(int, stat[11:13])) if int(stat[1]) == parent else 0
    return seconds / TICK


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def main() -> None:
    """Count or simulate, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="python -m experiments drivers", description=__doc__)
    parser.add_argument("--store", metavar="URL", help="an empty PostgreSQL database on this machine: count")
    parser.add_argument("--runs", type=int, default=200, help="of each driver, with --store")
    options = parser.parse_args()
    if options.store is not None:
        for drivers in COUNTS:
            _say(counted(options.store, drivers, options.runs))
        return
    for drivers, engines, runs in SIZES:
        for way in WAYS:
            came = simulated(drivers, engines, runs, way)
            _say({"drivers": drivers, "engines": engines, "runs": runs, "way": way, **vars_of(came)})


def vars_of(came: Any) -> dict[str, float]:
    """Return the fields of an outcome."""
    return {name: round(getattr(came, name), 4) for name in came.__slots__}


def _say(row: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(row)}\n")
    sys.stdout.flush()
