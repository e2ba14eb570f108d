"""`python -m benchmarks [NAME]… [--json FILE] [--markdown FILE]`: run benchmarks and print their tables."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .measure import Row

NAMES = (
    "overhead",
    "machine_rate",
    "signals",
    "placement",
    "shared_prefix",
    "queueing",
    "deadlines",
    "overload",
    "plan_stream",
    "react",
    "teams",
    "speculate",
    "rollouts",
    "throughput",
    "main_job",
    "prefix_reuse",
    "openai_server",
    "defaults",
    "streamed",
    "faults",
    "hedge",
    "aborts",
    "judges",
    "fairness",
)
HEAD = ("what", "ours", "baseline", "ours ÷ baseline", "goal")


def main() -> None:
    """Run the benchmarks that are named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write the tables here, after its first `---`"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = Console()
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {_processor()}"
    console.print(f"{machine}. Figures: median (lowest–highest) over rounds.")
    written: dict[str, list[dict[str, str]]] = {}
    pages = [f"Measured on: {machine}, with `python -m benchmarks {' '.join(options.names)}`.".replace(" `.", "`.")]
    for name in options.names or NAMES:
        module = importlib.import_module(f"{__package__}.{name}")
        rows = asyncio.run(module.run())
        written[name] = [row._asdict() for row in rows]
        pages.append(_markdown(name, (module.__doc__ or "").strip(), rows))
        table = Table(*HEAD, title=name.replace("_", " "))
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.markdown is not None:
        kept = options.markdown.read_text(encoding="utf-8").partition("\n---\n")[0] if options.markdown.exists() else ""
        options.markdown.write_text("\n\n".join([f"{kept.rstrip()}\n\n---", *pages]) + "\n", encoding="utf-8")


def _markdown(name: str, about: str, rows: list[Row]) -> str:
    lines = [f"## {name.replace('_', ' ')}", "", about, "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _processor() -> str:
    """Return the processor's model, where Linux says it."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
