"""The rows of a batch: requests read one at a time from JSON lines, outcomes kept as they come, and the final file.

Outcomes go to a log beside the output, one line a row, each flushed, so a batch that was killed goes on where it was;
when all rows are there they are written in the order of the input and the log is removed. Memory does not grow with the
texts: of a finished row only its number and its place in the log are held. It does not know how a request is run.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError

__all__ = ["COLUMNS", "Log", "Row", "count_rows", "read_rows", "write_output"]

FIELDS = ("id", "text", "task", "planner", "policies", "merge", "n", "seed", "tokens", "seconds")
"""What a row may say; all but `text` are the command's options where it leaves them out."""
COLUMNS: dict[str, str] = {
    "row": "int64",
    "id": "string",
    "status": "string",
    "answer": "string",
    "text": "string",
    "verified": "bool",
    "error": "string",
    "why": "string",
    "run": "string",
    "prompt_tokens": "int64",
    "cached_tokens": "int64",
    "completion_tokens": "int64",
    "cancelled_tokens": "int64",
    "critical_path_tokens": "int64",
    "elapsed_seconds": "double",
}
"""Columns of the output and their types. `status` is that of an answer, or `invalid` for a row that cannot be run."""
_BATCH = 512
"""Rows of a group in a Parquet file, and the most that are held at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the input."""

    number: int
    """Counted from 0."""
    fields: dict[str, Any]
    fault: str = ""
    """Why it cannot be run."""


def count_rows(path: Path) -> tuple[int, str]:
    """Return how many rows a file has (empty lines are none), and a digest that tells it from another file.

    Raises `ConfigError` for a file that cannot be read or has no rows.
    """
    digest, rows = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                rows += bool(line.strip())
    except OSError as error:
        raise ConfigError(f"the batch {path} cannot be read: {error.strerror or error}") from None
    if not rows:
        raise ConfigError(f'{path} has no rows: write lines like {{"text": "What is asked"}}')
    return rows, digest.hexdigest()


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file as they are asked for; one that makes no sense says why."""
    with path.open("rb") as file:
        number = 0
        for line in file:
            if line.strip():
                yield _row(number, line)
                number += 1


def _row(number: int, line: bytes) -> Row:
    example = 'write {"text": "What is asked"}'
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(number, {}, f"not JSON ({getattr(error, 'msg', None) or type(error).__name__}); {example}")
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        return Row(number, {}, f"no `text` in it; {example}")
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        return Row(number, fields, f"unknown field {unknown[0]!r}; there are {', '.join(FIELDS)}")
    return Row(number, fields)


class Log:
    """Outcomes of rows on disk. Every outcome is in the file when `add` returns."""

    def __init__(self, path: Path, header: dict[str, Any], rows: int, fresh: bool = False) -> None:
        """Open the log of a batch, or begin one. Raises `ConfigError` if it is another batch's."""
        self._path = path
        self._places = array("q", [-1]) * rows
        """Where the outcome of each row begins in the file; -1 for none yet."""
        self.done = self.failed = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh or not path.exists() or path.stat().st_size == 0:
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        else:
            self._read(header)
        self._file = path.open("r+b")
        self._file.seek(0, os.SEEK_END)

    def has(self, number: int) -> bool:
        """Whether a row has its outcome."""
        return self._places[number] >= 0

    def add(self, outcome: dict[str, Any]) -> None:
        """Keep the outcome of a row."""
        self._note(outcome, self._file.seek(0, os.SEEK_END))
        self._file.write(json.dumps(outcome, separators=(",", ":"), default=str).encode() + b"\n")
        self._file.flush()

    def outcomes(self) -> Iterator[dict[str, Any]]:
        """Yield all outcomes, in the order of the input."""
        for place in self._places:
            if place >= 0:
                self._file.seek(place)
                yield json.loads(self._file.readline())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        self._path.unlink()

    def _note(self, outcome: dict[str, Any], place: int) -> None:
        if not self.has(outcome["row"]):
            self.done += 1
            self.failed += outcome["status"] in ("failed", "invalid")
        self._places[outcome["row"]] = place

    def _read(self, header: dict[str, Any]) -> None:
        with self._path.open("r+b") as file:
            first = file.readline()
            if json.loads(first) != header:
                raise ConfigError(
                    f"{self._path} is what another batch left (other rows or options): give --fresh to begin anew, or "
                    "another --out"
                )
            while line := file.readline():
                place = file.tell() - len(line)
                if not line.endswith(b"\n"):  # the process was killed while it wrote this one
                    file.truncate(place)
                    break
                self._note(json.loads(line), place)


def write_output(log: Log, path: Path) -> None:
    """Write all outcomes, in the order of the input, as Parquet or JSON lines by the file's ending; atomically."""
    beside = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        _write_parquet(log, beside)
    else:
        with beside.open("w", encoding="utf-8") as file:
            for outcome in log.outcomes():
                file.write(json.dumps({name: outcome.get(name) for name in COLUMNS}, ensure_ascii=False) + "\n")
    os.replace(beside, path)


def _write_parquet(log: Log, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = {"int64": pa.int64(), "string": pa.string(), "bool": pa.bool_(), "double": pa.float64()}
    schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(path, schema) as writer:
        held: list[dict[str, Any]] = []
        for outcome in log.outcomes():
            answer = outcome.get("answer")
            told = answer if answer is None or isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            held.append({**outcome, "answer": told})
            if len(held) == _BATCH:
                writer.write_table(pa.Table.from_pylist(held, schema=schema))
                held.clear()
        if held:
            writer.write_table(pa.Table.from_pylist(held, schema=schema))
