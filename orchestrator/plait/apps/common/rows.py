"""Rows of a file of the user's own: CSV or Parquet where its name ends so, else JSON lines, read one at a time."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ...core.errors import ConfigError, PlaitError
from ...core.messages import did_you_mean

_MOST_OF_A_CELL = 1 << 24
_ROWS_OF_A_BATCH = 1_024
_SHOWN_FAULTS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it is in the file."""

    line: int
    """The line at which it ends, from 1."""
    fields: Any = None
    """By column without the empty cells, or the JSON value; `None` if it cannot be read."""
    fault: str = ""
    """Why it cannot be read."""


def is_csv(path: Path) -> bool:
    """Return whether a file is read as CSV."""
    return path.suffix.lower() == ".csv"


def raw_rows(path: Path, column: str = "") -> Iterator[RawRow]:
    """Yield the rows of a file, without empty lines.

    Raises `ConfigError` for a CSV or Parquet file without this column and for Parquet without pyarrow, `OSError` for a
    file that cannot be read.
    """
    if path.suffix.lower() == ".parquet":
        yield from _of_parquet(path, column)
        return
    if is_csv(path):
        with path.open(encoding=_encoding(path), errors="replace", newline="") as file:
            head = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(",;\t", key=head.count))  # spreadsheets write all three
            if column and reader.fieldnames and column not in reader.fieldnames:
                there = ", ".join(reader.fieldnames) + did_you_mean(column, reader.fieldnames)
                raise ConfigError(f"{path} has no column `{column}` (it has {there}): --text names another")
            yield from _of_csv(reader)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield RawRow(number, json.loads(line))
                except (ValueError, RecursionError) as error:
                    yield RawRow(number, fault=f"not JSON ({getattr(error, 'msg', None) or type(error).__name__})")


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _of_parquet(path: Path, column: str) -> Iterator[RawRow]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise ConfigError("Parquet needs pyarrow: pip install 'plait[batch]', or give .jsonl or .csv") from None
    try:
        with parquet.ParquetFile(path) as file:
            if column and column not in file.schema_arrow.names:
                there = ", ".join(file.schema_arrow.names)
                raise ConfigError(f"{path} has no column `{column}` (it has {there}): --text names another")
            rows = (row for batch in file.iter_batches(_ROWS_OF_A_BATCH) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield RawRow(number, {name: value for name, value in row.items() if value is not None})
    except (ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from None


def _of_csv(reader: csv.DictReader[str]) -> Iterator[RawRow]:
    csv.field_size_limit(_MOST_OF_A_CELL)
    while True:
        try:
            cells: dict[Any, Any] | None = next(reader, None)
        except csv.Error as error:
            yield RawRow(reader.line_num, fault=f"not CSV ({error})")
            continue
        if cells is None:
            return
        fault = ""
        if cells.pop(None, None) is not None:
            fault = "more cells than there are columns: put texts with commas into quotes"
        yield RawRow(reader.line_num, {name: cell for name, cell in cells.items() if cell}, fault)


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def read_problems(path: Path, problem: Callable[[Any], T], example: str, limit: int | None = None) -> list[T]:
    """Convert the fields of the first `limit` rows with `problem`, which raises `ValueError` for an invalid row.

    Raises `ConfigError` for a file that cannot be read or has no rows, and one that names the lines at fault.
    """
    problems: list[T] = []
    faults: dict[str, list[int]] = {}
    try:
        for row in islice(raw_rows(path), limit):
            try:
                if row.fault:
                    raise ValueError(row.fault if is_csv(path) else f"{row.fault}; write {example}")
                problems.append(problem(row.fields))
            except (PlaitError, ValueError, TypeError) as error:
                faults.setdefault(str(error), []).append(row.line)
    except OSError as error:
        raise ConfigError(f"the problems {path} cannot be read: {error.strerror or error}") from None
    if faults:
        shown = [
            f"line {', '.join(map(str, lines[:3]))}{_and_more(len(lines) - 3)}: {fault}"
            for fault, lines in faults.items()
        ]
        raise ConfigError(f"{path}: {'; '.join(shown[:_SHOWN_FAULTS])}{_and_more(len(shown) - _SHOWN_FAULTS)}")
    if not problems:
        raise ConfigError(f"{path} has no problems: write lines like {example}")
    return problems
