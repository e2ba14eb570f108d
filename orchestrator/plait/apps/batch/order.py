"""The order in which a batch is run: as the file has it, or rows with the same beginning one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from ...core.errors import ConfigError
from .rows import AS_HERE, BatchRow, InputFields, read_rows

__all__ = ["Order", "in_order"]

Order = Literal["file", "prefix"]
_MOST = 512 << 20
"""Bytes of a file that is read whole."""


def in_order(
    path: Path, order: Order, wanted: Callable[[int], bool], named: InputFields = AS_HERE
) -> Iterator[BatchRow]:
    """Yield the rows that are wanted, by number.

    `prefix` sorts them by their text, which is the order of a walk through the tree of their prefixes: every prefix is
    read by the engine once and can be dropped when its rows are over (BatchLLM, arXiv 2412.03594; it also orders groups
    by how much they decode, which is not known here beforehand). The file is then held in memory.

    Raises `ConfigError` for a file too large for that.
    """
    rows: Iterable[BatchRow] = (row for row in read_rows(path, named) if wanted(row.number))
    if order == "prefix":
        if path.stat().st_size > _MOST:
            raise ConfigError(
                f"{path} is larger than {_MOST >> 20} MiB, and --order prefix holds it in memory: split it, or leave "
                "the order as it is"
            )
        rows = sorted(rows, key=_key)
    yield from rows


def _key(row: BatchRow) -> tuple[str, str, int]:
    """Return what rows are sorted by: those that ask the same model in the same way together, then by text."""
    fields = sorted((name, str(value)) for name, value in row.fields.items() if name not in ("id", "text", "seed"))
    return str(fields), str(row.fields.get("text", "")), row.number
