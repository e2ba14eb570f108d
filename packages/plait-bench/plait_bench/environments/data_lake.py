"""Environment `data-lake`: a folder of CSV, JSON, Parquet and SQLite files, read by SQL and by commands."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import csv
import io
import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, JsonValue

from plait.core.declarations import Fidelity, ServerFile
from plait.core.errors import ToolError
from plait.core.extras import extra
from plait.core.tools.tool import Tool

from ._lake_scores import ANSWER_TYPES, score_answer, tables_match
from .bash_sql import BashSqlEnvironment

__all__ = ["DataLakeEnvironment"]

_MAX_BYTES = 64 << 20
_WANTED = f"write {{'tables': ['CSV', …]}} or {{'answer': 15, 'answer_type': …}}, of {', '.join(ANSWER_TYPES)}"
_PARQUET = "a Parquet file needs pyarrow: pip install 'plait[batch]'"


class DataLakeEnvironment(BashSqlEnvironment):
    """A folder of files, with tools that change nothing: `query` runs SQL over all of them, `look` a command in the
    folder. Each file of CSV, JSON (a list of objects) or Parquet is a table named as the file, beside the tables of
    SQLite files; `select sql from sqlite_master` lists them. Other files, and those that are no tables, are there for
    `look`. A question names its files in `lake`; without, it has all.

    The expectation is KramaBench's (arXiv 2506.06541), `{"answer": …, "answer_type": "numeric_exact"}`, where an
    approximate number is right within 1 %, or Spider 2.0-lite's (arXiv 2411.07763), `{"tables": ["CSV", …]}` with the
    `columns` that count of each and `ignore_order`: then the answer is a query, or a table in CSV, that equals one.
    """

    fidelity = Fidelity("variant", "no model judges", ("kramabench-scores", "spider2-tables"), "2506.06541")
    limits: ClassVar[Mapping[str, float]] = {"disk": 512, "file": 256, "memory": 2048, "cpu": 60, "seconds": 60}

    folder: Annotated[str, ServerFile()] = Field(default=".", description="Folder of the lake, at most 64 MiB.")

    def tools(self) -> Sequence[Tool[..., Any]]:
        """Return `query` and `look`."""
        return [tool for tool in super().tools() if tool.name in ("query", "look")]

    async def _begin(self) -> None:
        if not self._begun:
            self._tar = await asyncio.to_thread(pack_lake, self.folder, json.loads(self.text).get("lake", ()))
            self._begun = True

    async def grade(self, answer: JsonValue, wanted: JsonValue) -> bool:
        """Return whether the answer, read as JSON unless a text is wanted, has the full score. Raises `ToolError`."""
        want = wanted if isinstance(wanted, dict) else {}
        if isinstance(answer, str) and not isinstance(want.get("answer", ""), str):
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(answer)
        return await self.score(answer, wanted) >= (1 / 1.01 if want.get("answer_type") == "numeric_approximate" else 1)

    async def score(self, answer: JsonValue, wanted: JsonValue) -> float:
        """Return KramaBench's score of an answer in [0, 1], or 1 for one of the right tables. Raises `ToolError`."""
        match wanted:
            case {"answer": target, "answer_type": str(kind)} if kind in ANSWER_TYPES:
                return score_answer(answer, target, kind)
            case {"tables": [*golds], **rule}:
                if str(answer).upper().startswith(("SELECT", "WITH")):
                    answer = await self._select(str(answer))
                return float(tables_match(str(answer), golds, rule.get("columns"), rule.get("ignore_order")))
            case _:
                raise ToolError(_WANTED)

    async def _select(self, query: str) -> str:
        """Return a query's rows as CSV; none of a query that fails or does not end."""
        rows: list[list[Any]] = [[]]
        async with self._turn:
            await self._begin()
            with contextlib.suppress(ToolError):
                rows = (await self._ran("sql", query, self._tar, keep=False))["rows"] or rows
        table = io.StringIO()
        csv.writer(table).writerows([range(len(rows[0])), *rows])
        return table.getvalue()


def pack_lake(place: str, names: Sequence[str]) -> str:
    """Return a packed copy of a folder's files (`names`: of these alone) and of a database with their tables. Raises
    `ToolError` for files that are outside the folder or too large."""
    folder = Path(place).expanduser().resolve()
    files = [folder / name for name in names] or sorted(path for path in folder.rglob("*") if path.is_file())
    if lost := [path for path in files if not (path.is_file() and path.resolve().is_relative_to(folder))]:
        raise ToolError(f"{lost[0]} is not a file of the data lake {folder}")
    if not files or sum(path.stat().st_size for path in files) > _MAX_BYTES:
        raise ToolError(f"the files of {folder} must have 1 byte to 64 MiB; name a question's files in its `lake`")
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        data = Path(temporary, "data.db")
        with contextlib.closing(sqlite3.connect(data)) as database:
            for path in files:
                tar.add(path.resolve(), str(path.relative_to(folder)))
                with contextlib.suppress(ValueError, sqlite3.Error), database:  # lakes have files that are no tables
                    database.execute("begin")
                    for name, columns, rows in _read_tables(path, str(path.relative_to(folder).with_suffix(""))):
                        database.execute(f"create table {_quote(name)} ({', '.join(columns)})")
                        marks = ", ".join("?" * len(columns))
                        database.executemany(f"insert into {_quote(name)} values ({marks})", rows)
        tar.add(data, "data.db")
    return base64.b64encode(packed.getvalue()).decode()


def _read_tables(path: Path, table: str) -> Iterator[tuple[str, list[str], Iterable[Sequence[Any]]]]:
    """Yield the tables of a file (its own is called `table`): name, columns as SQLite declares them, rows."""
    items: list[dict[str, Any]] = []
    match path.suffix.lower():
        case ".sqlite" | ".db":
            with contextlib.closing(sqlite3.connect(path)) as source:
                for (name,) in source.execute("select name from sqlite_master where type = 'table'").fetchall():
                    rows = source.execute(f"select * from {_quote(name)}")
                    yield name, [_quote(column[0]) for column in rows.description], rows
        case ".csv":
            header, *cells = csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig", errors="replace")))
            rows = [[cell or None for cell in row] for row in cells if row]
            yield table, [*map("{} numeric".format, map(_quote, header))], rows
        case ".json":
            items = json.loads(path.read_text(encoding="utf-8-sig"))
        case ".parquet":
            items = extra("pyarrow.parquet", _PARQUET, ToolError).read_table(path).to_pylist()
        case _:
            pass
    if items and isinstance(items, list) and all(isinstance(item, dict) for item in items):
        keys = list(dict.fromkeys(chain.from_iterable(items)))
        yield table, [*map(_quote, keys)], [[_plain(item.get(key)) for key in keys] for item in items]


def _plain(cell: Any) -> Any:
    """Return a value that SQLite has: a text for others, of lists and objects JSON."""
    if cell is None or isinstance(cell, int | float | str | bytes):
        return cell
    return json.dumps(cell, default=str) if isinstance(cell, list | dict) else str(cell)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
