"""The rows of a batch: requests read one at a time from JSON lines or CSV, their outcomes, and the final file.

Outcomes go to a log beside the output with one flushed line per row, so a killed batch resumes where it stopped. After
the last row, the outcomes are written in input order and the log is deleted. Memory does not grow with the texts: only
the number of a finished row and its position in the log are kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from ...core.errors import ConfigError, PlaitError, TaskError, WorkerError
from ...core.messages import did_you_mean
from ...core.provenance import Provenance
from ...core.request import Request
from ...core.values import as_text
from ...runtime.client.answer import Answer
from ...runtime.client.client import AsyncOrchestrator
from ...runtime.client.config import Config
from ...runtime.plugins.spec import untrusted
from ..commands.run import briefed
from ..common.dataset import DatasetQuestion, is_csv, raw_rows
from ..common.files import written
from ..common.interrupt import Stopper

FIELDS = ("id", "text", "task", "planner", "policies", "merge", "n", "seed", "tokens", "seconds")
"""Input fields of a row; the command's options are the defaults of all but `text`. Other columns are copied to the
output."""
COLUMNS: dict[str, str] = {
    "row": "int64",
    "id": "string",
    "status": "string",
    "answer": "string",
    "text": "string",
    "verified": "bool",
    "right": "bool",
    "error": "string",
    "why": "string",
    "run": "string",
    "prompt_tokens": "int64",
    "cached_tokens": "int64",
    "completion_tokens": "int64",
    "cancelled_tokens": "int64",
    "critical_path_tokens": "int64",
    "elapsed_seconds": "double",
    "provenance": "string",
}
"""Columns of the output and their types. `status`: the answer's status, or `invalid` for a row that cannot be run.
`right`: whether the answer is correct, if the input has the correct answer."""
Order = Literal["file", "prefix"]
_MAX_SORTED_BYTES = 512 << 20
"""Bytes of a file that is read whole."""
_EXAMPLE = '{"text": "What is asked"}'
_NUMBERS = ("n", "seed", "tokens", "seconds")
_SHOWN_ERRORS = 3
_BATCH = 512
"""Rows per group of a Parquet file, and maximum number of rows in memory."""


@dataclass(frozen=True, slots=True)
class InputFields:
    """Names of input columns that differ from the default names."""

    text: str = "text"
    id: str = "id"
    want: str = ""
    """The column with the right answer; by default the input has none."""

    def renamed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a row's fields with columns renamed to `text` and `id`; these replace columns of the same names."""
        given = dict(fields)
        for name, column in (("text", self.text), ("id", self.id)):
            if column != name and name in given:
                given[f"input_{name}"] = given.pop(name)
        for name, column in (("text", self.text), ("id", self.id)):
            if column != name and column in fields:
                given[name] = fields[column]
                if column != self.want:
                    given.pop(column, None)
        return given


AS_HERE = InputFields()


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One line of the input."""

    number: int
    """Counted from 0."""
    fields: dict[str, Any]
    fault: str = ""
    """Why the row is invalid."""


def count_rows(path: Path, named: InputFields = AS_HERE) -> tuple[int, str]:
    """Return the number of rows of a file (without empty lines), and a digest that identifies it.

    Raises `ConfigError` for a file that cannot be read or has no rows.
    """
    digest, lines = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                lines += bool(line.strip())
        by_line = path.suffix.lower() not in (".csv", ".parquet")
        rows = lines if by_line else sum(1 for _ in read_rows(path, named))
    except OSError as error:
        raise ConfigError(f"the batch {path} cannot be read: {error.strerror or error}") from None
    if not rows:
        like = "a line of column names (text, …) and one for each row" if is_csv(path) else _EXAMPLE
        raise ConfigError(f"{path} has no rows: write {like}")
    return rows, digest.hexdigest()


def read_rows(path: Path, named: InputFields = AS_HERE) -> Iterator[BatchRow]:
    """Yield the rows of a file lazily; an invalid row contains the error.

    Raises `ConfigError` for a CSV file without the text column.
    """
    text = is_csv(path)
    for number, raw in enumerate(raw_rows(path, named.text)):
        if raw.fault:
            yield BatchRow(number, {}, raw.fault if text else f"{raw.fault}; write {_EXAMPLE}")
        else:
            fields = {name: _of_text(name, cell) for name, cell in raw.fields.items()} if text else raw.fields
            yield _checked(number, fields, named)


def in_order(
    path: Path, order: Order, wanted: Callable[[int], bool], named: InputFields = AS_HERE
) -> Iterator[BatchRow]:
    """Yield the rows with the given numbers.

    `prefix` sorts the rows by text, which walks the tree of prefixes: the engine reads every prefix once and can drop
    it after its last row (BatchLLM, arXiv 2412.03594, which also orders groups by output length; plait does not know
    this length in advance). The file is then held in memory.

    Raises `ConfigError` for a file too large for that.
    """
    rows: Iterable[BatchRow] = (row for row in read_rows(path, named) if wanted(row.number))
    if order == "prefix":
        if path.stat().st_size > _MAX_SORTED_BYTES:
            raise ConfigError(
                f"{path} is larger than {_MAX_SORTED_BYTES >> 20} MiB, and --order prefix holds it in memory: split it "
                "or leave the order as it is"
            )
        rows = sorted(rows, key=_sort_key)
    yield from rows


def _sort_key(row: BatchRow) -> tuple[str, str, int]:
    """Return the sort key of a row: rows with the same model and options together, then by text."""
    fields = sorted((name, str(value)) for name, value in row.fields.items() if name not in ("id", "text", "seed"))
    return str(fields), str(row.fields.get("text", "")), row.number


def other_columns(path: Path, named: InputFields = AS_HERE) -> list[str]:
    """Return all columns that are only copied to the output, in order of first occurrence."""
    return list(dict.fromkeys(name for row in read_rows(path, named) for name in row.fields if name not in FIELDS))


def carried(name: str) -> str:
    """Return a copied column's name in the output: its own name, unless the output has another column of this name.

    >>> carried("label"), carried("answer"), carried("input_answer")
    ('label', 'input_answer', 'input_input_answer')
    """
    own = name
    while own.startswith("input_"):
        own = own.removeprefix("input_")
    return f"input_{name}" if own in COLUMNS else name  # so that no two columns get one name


def _of_text(name: str, cell: str) -> Any:
    """Parse a text cell as an option's value; return the text itself if it is not one."""
    if name in _NUMBERS or (name == "policies" and cell.startswith("[")):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return [cell] if name == "policies" else cell


def _checked(number: int, fields: object, named: InputFields) -> BatchRow:
    if not isinstance(fields, dict):
        return BatchRow(number, {}, f"no `{named.text}` in it; write {_EXAMPLE}")
    given = named.renamed(cast("dict[str, Any]", fields))
    if isinstance(given.get("text"), str):
        return BatchRow(number, given)
    there = ", ".join(map(str, fields)) or "nothing"
    near = did_you_mean(named.text, map(str, fields))
    return BatchRow(number, given, f"no `{named.text}` in it (it has {there}{near}): write {_EXAMPLE}, or --text FIELD")


def slips(others: Sequence[str]) -> list[str]:
    """Return hints for carried columns whose names are similar to those of options."""
    near = [(name, did_you_mean(name, FIELDS)) for name in others if name not in COLUMNS]  # an `answer` is no `planner`
    return [f"{name!r}{hint}" for name, hint in near if hint]


class Log:
    """Outcomes of rows on disk. `add` returns after writing the outcome to the file."""

    def __init__(self, path: Path, header: dict[str, Any], rows: int, fresh: bool = False) -> None:
        """Open the log of a batch, or create it. Raises `ConfigError` for another batch's log."""
        self._path = path
        self._places = array("q", [-1]) * rows
        """Position of each row's outcome in the file; -1 without an outcome."""
        self.done = self.failed = self.right = 0
        self.errors: dict[str, tuple[int, str]] = {}
        """The first different errors of rows, each with the number of its first row, from 1, and that row's run."""
        self._made: Provenance | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path)
        try:
            first = b"" if fresh else self._file.readline()
            self.is_new = not first.endswith(b"\n")
            """Whether the log has no data of an earlier try; an incomplete header does not count as data."""
            if self.is_new:
                self._file.seek(0)
                self._file.truncate()
                self._append(header)
            else:
                self._read(first, header)
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def claim(self, made: Provenance) -> None:
        """Store the outcomes' provenance, or compare it with an earlier try's. Raises `ConfigError`."""
        if self._made is not None:
            made.demand(self._made, str(self._path))
            return
        self._made = made
        self._append({"made_of": made.model_dump(mode="json")})

    def has(self, number: int) -> bool:
        """Return whether a row has an outcome."""
        return self._places[number] >= 0

    def add(self, outcome: dict[str, Any]) -> None:
        """Store a row's outcome. If the outcome has a provenance (from another process), compare it first."""
        if made := outcome.pop("made_of", None):
            self.claim(Provenance.model_validate(made))
        self._note(outcome, self._append(outcome))

    def _append(self, record: dict[str, Any]) -> int:
        """Append a record to the file, and return its position."""
        place = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n")
            self._file.flush()
        except OSError as error:  # a full disk names no file
            error.filename = str(self._path)
            raise
        return place

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
        self._path.unlink(missing_ok=True)  # while it is still locked
        self.close()

    def _note(self, outcome: dict[str, Any], place: int) -> None:
        if not self.has(outcome["row"]):
            self.done += 1
            self.right += outcome.get("right") is True
            if outcome["status"] in ("failed", "invalid"):
                self.failed += 1
                if len(self.errors) < _SHOWN_ERRORS:
                    self.errors.setdefault(str(outcome.get("error")), (outcome["row"] + 1, outcome.get("run") or ""))
        self._places[outcome["row"]] = place

    def _read(self, first: bytes, header: dict[str, Any]) -> None:
        try:
            same = json.loads(first) == header
        except ValueError:
            same = False
        if not same:
            raise ConfigError(
                f"{self._path} belongs to another batch (other rows or options): give --fresh to start again, or "
                "another --out"
            )
        while line := self._file.readline():
            place = self._file.tell() - len(line)
            if not line.endswith(b"\n"):  # the process was killed while writing this record
                self._file.truncate(place)
                break
            with contextlib.suppress(ValueError, LookupError, TypeError):  # a damaged line: the row is run again
                told = json.loads(line)
                if "made_of" in told:
                    self._made = Provenance.model_validate(told["made_of"])
                else:
                    self._note(told, place)


def _locked(path: Path) -> BinaryIO:
    """Open the log and lock it until it is closed. Raises `ConfigError` while another process holds the lock."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise ConfigError(
                f"another process is working on {path}: wait for it, or give this one another --out"
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # the other process has just finished and deleted the log


def has_answers(path: Path) -> bool:
    """Return whether a file may hold an answer: it has a row that neither failed nor is invalid, or an unknown row."""
    useless = ("failed", "invalid")
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return not set(parquet.read_table(path, columns=["status"])["status"].to_pylist()) <= set(useless)
        with path.open(encoding="utf-8") as file:
            return any(json.loads(line).get("status") not in useless for line in file)
    except Exception:  # not a batch's record: the file's owner is unknown
        return True


def write_output(log: Log, path: Path, others: Sequence[str] = ()) -> None:
    """Write all outcomes atomically in input order, as Parquet or JSON lines by the file's extension. `others`: copied
    input columns of the table; JSON lines have all columns of each row."""
    with written(path) as file:
        if path.suffix == ".parquet":
            _write_parquet(log, file, list(map(carried, others)))
            return
        for outcome in log.outcomes():
            told = {name: outcome.get(name) for name in COLUMNS} | outcome.get("carried", {})
            line = json.dumps(told, ensure_ascii=False)
            file.write(line.encode(errors="replace") + b"\n")


def _write_parquet(log: Log, path: BinaryIO, others: Sequence[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    types = {"int64": pa.int64(), "string": pa.string(), "bool": pa.bool_(), "double": pa.float64()}
    schema = pa.schema(
        [(name, types[kind]) for name, kind in COLUMNS.items()] + [(name, types["string"]) for name in others]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        held: list[dict[str, Any]] = []
        for outcome in log.outcomes():
            answer = outcome.get("answer")
            told = answer if answer is None or isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            rest = {
                name: None if value is None else as_text(value) for name, value in outcome.get("carried", {}).items()
            }
            held.append({**rest, **outcome, "answer": told})
            if len(held) == _BATCH:
                writer.write_table(pa.Table.from_pylist(held, schema=schema))
                held.clear()
        if held:
            writer.write_table(pa.Table.from_pylist(held, schema=schema))


def allowed(config: Config, text: str, request: Request) -> None:
    """Check a command's request, and allow the code that it names. Raises errors that affect every row."""
    with contextlib.suppress(TaskError):  # that is about the row
        briefed(config, request.updated({"text": text}))


async def outcome(
    orchestrator: AsyncOrchestrator, row: BatchRow, request: Request, stopper: Stopper | None = None, want: str = ""
) -> dict[str, Any] | None:
    """Run one row and return its outcome; `None` if the user cancelled the row. `want`: the column with the correct
    answer. Raises `WorkerError` if no further row can run."""
    fields = dict(row.fields)
    name = fields.pop("id", None)
    head: dict[str, Any] = {"row": row.number, "id": None if name is None else str(name)}
    if rest := {carried(key): value for key, value in fields.items() if key not in FIELDS}:
        head["carried"] = rest
    if row.fault:
        return {**head, "status": "invalid", "error": row.fault}
    try:
        own = {key: value for key, value in fields.items() if key in FIELDS and key != "text"}
        with untrusted():
            handle = await orchestrator.submit(request, text=fields["text"], fairness_group="batch", **own)
    except WorkerError:  # no further row can run, and no row is at fault
        raise
    except (PlaitError, ValueError, TypeError) as error:
        return {**head, "status": "invalid", "error": str(error)}
    with contextlib.ExitStack() as stack:
        if stopper is not None:
            stack.callback(stopper.then(handle.cancel))
        answer = await handle
    if answer.status == "cancelled":
        return None
    right = None
    if want and fields.get(want) is not None:
        task = orchestrator.plugins.task(handle.request.task, handle.request.text)
        right = DatasetQuestion(task, fields[want]).is_right(answer.answer)
    return {**head, **_columns(answer), "right": right}


def _columns(answer: Answer) -> dict[str, Any]:
    usage, value = answer.usage, answer.value
    return {
        "status": answer.status,
        "answer": answer.answer,
        "text": value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        "verified": answer.verified,
        "error": None if answer.failure is None else f"{answer.failure.kind}: {answer.failure.message}",
        "why": answer.why,
        "run": answer.run,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "cancelled_tokens": usage.cancelled,
        "critical_path_tokens": answer.critical_path_tokens,
        "elapsed_seconds": round(answer.seconds, 4),
        "provenance": None if answer.provenance is None else answer.provenance.digest,
    }  # fmt: skip
