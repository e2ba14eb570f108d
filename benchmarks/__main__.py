"""`python -m benchmarks [NAME]… [--json FILE]`: run benchmarks and print their tables."""

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

NAMES = ("overhead", "machine_rate", "throughput")


def main() -> None:
    """Run the benchmarks that are named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = Console()
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores. Figures: median (lowest–highest) over rounds."
    )
    written: dict[str, list[dict[str, str]]] = {}
    for name in options.names or NAMES:
        module = importlib.import_module(f"{__package__}.{name}")
        rows = asyncio.run(module.run())
        written[name] = [row._asdict() for row in rows]
        table = Table("what", "ours", "baseline", "ours ÷ baseline", "goal", title=name.replace("_", " "))
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
