"""What a step through a checkout's SDK costs, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from scripts.checkout import python_path

__all__ = ["DEPTH", "HERE", "PLANS", "WIDTH", "measured_in"]

WIDTH, DEPTH = 1000, 200
HERE = Path(__file__).resolve().parents[2]
PLANS = (("chain", DEPTH), ("fan", WIDTH), ("layers", 5000), ("chain+journal", DEPTH), ("fan+journal", WIDTH))


def measured_in(folder: Path, what: str, size: int) -> tuple[float, float]:
    """Return CPU microseconds a step through a checkout's SDK, and peak MiB, in a process of its own."""
    path = python_path(folder, folder / "src")  # checkouts from before the roots have links to the package in `src`
    package = "plait" if any((folder / root / "plait").is_dir() for root in ("orchestrator", "src")) else "orchestrator"
    command = [sys.executable, str(Path(__file__).with_name("child.py")), package, what, str(size)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    time_a_step, memory = json.loads(done.stdout)
    return time_a_step, memory
