"""Keeps the records of a study in a file of JSON lines, so that a stopped study resumes where it stopped.

The first line names the study of the records, and later lines name their source. Decides nothing about what is in a
record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from plait.core.errors import ConfigError

from .base import Record

__all__ = ["Store"]


class Store:
    """Records by condition and problem. Every record is on disk when `add` returns."""

    def __init__(self, path: Path, header: dict[str, Any], fresh: bool = False) -> None:
        """Open the file, or begin it. Raises `ConfigError` if it holds the records of something else."""
        self._path = path
        self._found: dict[str, dict[int, Record]] = {}
        self.machines: list[str] = []
        """Where the records come from, as far as that was noted."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh or not path.exists() or path.stat().st_size == 0:
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        else:
            self._read(header)
        self._file = path.open("a", encoding="utf-8")

    def has(self, key: str, place: int) -> bool:
        """Whether a problem has been run under a condition."""
        return place in self._found.get(key, {})

    def add(self, key: str, place: int, record: Record) -> None:
        """Keep one record."""
        self._found.setdefault(key, {})[place] = record
        self._file.write(json.dumps({"condition": key, "problem": place, **record}, separators=(",", ":")) + "\n")
        self._file.flush()

    def ran_on(self, machine: str) -> None:
        """Note where records come from."""
        if machine not in self.machines:
            self.machines.append(machine)
            self._file.write(json.dumps({"machine": machine}) + "\n")
            self._file.flush()

    def records(self, count: int) -> dict[str, Sequence[Record]]:
        """Return the records of the first `count` problems, by condition, in the order of the problems: up to the first
        problem that has not been run, so that the i-th record is always the i-th problem's."""
        return {
            key: [found[place] for place in takewhile(found.__contains__, range(count))]
            for key, found in self._found.items()
        }

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, header: dict[str, Any]) -> None:
        lines = self._path.read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # the process was killed while it wrote this one
            with self._path.open("r+b") as file:
                file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        held = json.loads(lines[0]) if lines else None
        if held != header:
            raise ConfigError(
                f"{self._path} holds the records of another study, seed or model: give --fresh to start over, "
                "or another --records folder"
            )
        for line in lines[1:]:
            record = json.loads(line)
            if "machine" in record:
                self.machines.append(record["machine"])
                continue
            self._found.setdefault(record.pop("condition"), {})[record.pop("problem")] = record
