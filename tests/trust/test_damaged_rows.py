"""Files of rows that are damaged, or mean harm: CSV, JSON lines and Parquet are read, or refused in words."""

from __future__ import annotations

import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from plait.apps.batch.rows import count_rows, read_rows
from plait.apps.common.dataset import raw_rows
from plait.core.errors import PlaitError

ROWS: list[dict[str, Any]] = [
    {"text": "2 + 2?", "want": "4", "id": "a", "n": 3},
    {"text": 'a "quoted" text, with a comma', "want": None, "id": "b", "n": 1},
    {"text": "two\nlines and é😀", "want": "x", "id": "c", "n": 2},
]
PIECES = (b'"', b",", b"\n", b"\r", b"\0", b"\xff\xfe", b"{", b"[" * 2_000, b"}", b"\\", b"\\ud83d", b"NaN", b"1e999",
          b"9" * 5_000, b'"text":', b"PAR1", b"\xef\xbb\xbf", b"=cmd|'/c calc'!A0", b"x" * 70_000, b"")  # fmt: skip


def sound(kind: str) -> bytes:
    """A file that is well."""
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == "csv":
        import csv

        out = io.StringIO()
        writer = csv.DictWriter(out, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
        return out.getvalue().encode()
    pyarrow = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


def damaged(whole: bytes, dice: random.Random) -> bytes:
    """The same with some bytes changed, put in, left out, said twice, or cut off."""
    made = bytearray(whole)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(made) + 1)
        match dice.randrange(5):
            case 0 if made:
                made[at % len(made)] = dice.randrange(256)
            case 1:
                made[at:at] = dice.choice(PIECES)
            case 2:
                del made[at : at + dice.choice((1, 4, 40))]
            case 3:
                made[at:at] = made[max(0, at - 30) : at]
            case _:
                del made[at:]
    return bytes(made)


def go(kind: str, count: int | tuple[int, ...], folder: Path) -> dict[str, int]:
    """Read so many damaged files; return how many were read and how many refused."""
    whole, found = sound(kind), {"read": 0, "refused": 0, "without words": 0}
    path = folder / f"rows.{kind}"
    for number in range(count) if isinstance(count, int) else count:
        path.write_bytes(damaged(whole, random.Random(number)))
        began = time.process_time()
        for read in (lambda: list(raw_rows(path)), lambda: (count_rows(path), list(read_rows(path)))):
            try:
                read()
                found["read"] += 1
            except (PlaitError, OSError) as error:
                found["refused" if str(error).strip() else "without words"] += 1
            except Exception as error:
                raise AssertionError(f"{kind} {number}: {error!r}") from error
        assert time.process_time() - began < 5, f"{kind} {number}: it took long"
    assert not found["without words"]
    return found


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_damaged_rows(kind: str, tmp_path: Path) -> None:
    found = go(kind, 200, tmp_path)
    assert found["read"] and (found["refused"] or kind == "jsonl")


@pytest.mark.parametrize(("kind", "number"), [("csv", 5714), ("parquet", 269)])
def test_rows_that_were_a_mistake_of_ours(kind: str, number: int, tmp_path: Path) -> None:
    """A cell that is nested too deep, a text that is no UTF-8."""
    go(kind, (number,), tmp_path)
