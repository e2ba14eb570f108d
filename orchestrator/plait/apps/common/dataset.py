"""Questions of the user's own: the rows of a file (CSV or Parquet where its name ends so, else JSON lines), the columns
of questions and of right answers (found by their names, else by their values), and whether an answer is right."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from ...core.errors import ConfigError, PlaitError, PluginError, UsageError
from ...core.messages import did_you_mean
from ...core.ops import Plugin
from ...core.task import Environment, Task
from ...runtime.plugins.loader import Plugins

_MOST_OF_A_CELL = 1 << 24
_ROWS_OF_A_BATCH = 1_024
_SHOWN_FAULTS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row of the file, unchanged."""

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


_TEXTS = ("question", "text", "prompt", "query", "input", "problem", "instruction", "sentence", "content", "request")
"""Usual names of what is asked, the likeliest first."""
_WANTS = ("answer", "want", "label", "target", "expected", "gold", "solution", "output", "reference", "final_answer")
"""Usual names of right answers."""


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """Two columns of a file, each with the reason why it was taken."""

    text: str
    want: str
    why: tuple[str, str]
    numbers: bool
    """All answers are numbers."""


def guess_columns(rows: Sequence[Mapping[str, Any]], text: str = "", want: str = "") -> GuessedColumns:
    """Return the columns of rows. `text` and `want` are those that the user named, if any.

    Raises `UsageError`, which names the file's columns, if one of them cannot be determined.

    >>> guess_columns([{"q": "How many days has a week?", "a": "7"}]).want
    'a'
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    there = f"the columns are {', '.join(names) or 'none'}"
    filled = {name: [row[name] for row in rows if row.get(name) not in (None, "")] for name in names}
    _check_named(text, "--text", names)
    _check_named(want, "--want", names)
    pair = ("text",) * ({"text", "want"} <= set(names))  # the names that plait itself uses
    texts = [name for name in names if name != want and all(isinstance(value, str) for value in filled[name])]
    length = {name: mean(len(value) for value in filled[name] or [""]) for name in texts}
    asked, why_text = _taken(text, (*pair, *_TEXTS), texts, length.__getitem__)
    if not asked:
        raise UsageError(f"no column holds texts that could be asked ({there}): name one with --text")
    # An answer is there in every row and is short: shorter than the question, and no number of the row.
    answers = [name for name in names if name != asked and len(filled[name]) == len(rows)]
    short = [name for name in answers if name.casefold() not in ("id", "index", "row") and _brief(filled[name])]
    wanted, why_want = _taken(want, _WANTS, answers, None)
    if not wanted and len(short) == 1:
        wanted, why_want = short[0], "the only other column with a short value in every row"
    if not wanted:
        raise UsageError(
            f"the column with the right answers cannot be determined ({there}): name it with --want; without right "
            f"answers, use `plait batch FILE --text {asked} --out OUT.jsonl`"
        )
    return GuessedColumns(asked, wanted, (why_text, why_want), all(map(_is_number, filled[wanted])))


def _check_named(name: str, option: str, names: Sequence[str]) -> None:
    if name and name not in names:
        near = did_you_mean(name, names)
        raise UsageError(f"there is no column {name!r} for {option}{near}: the columns are {', '.join(names)}")


def _taken(given: str, usual: Sequence[str], columns: Sequence[str], size: Any) -> tuple[str, str]:
    """Return a column and why: the one that was named, one of a usual name, or the one with most in it."""
    if given:
        return given, "as you say"
    known = {name.casefold().replace(" ", "_"): name for name in reversed(columns)}
    for name in usual:
        if name in known:
            return known[name], "by its name"
    if size is None or not columns:
        return "", ""
    return max(columns, key=size), "the longest texts"


def _brief(values: Sequence[Any]) -> bool:
    return all(not isinstance(value, dict | list) and len(str(value)) <= 80 for value in values)


def _is_number(value: Any) -> bool:
    try:
        float(str(value).replace(",", ""))
    except ValueError:
        return False
    return not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class DatasetQuestion:
    """A question, and what is known of its answer."""

    task: Task
    want: Any = None
    """The right answer; `None` where the task itself can tell."""
    place: Plugin | None = None
    """The environment that it is worked on and graded in."""

    @property
    def text(self) -> str:
        """What is asked."""
        return self.task.text

    def is_right(self, answer: Any) -> bool:
        """Return whether an answer is the wanted one (their keys are equal), or verified where none is given."""
        if answer is None:
            return False
        if self.want is None:
            return self.task.verify(answer) is True
        return self.task.key(answer) == self.task.key(self.want)

    def environment(self) -> Environment | None:
        """Return a new environment for it, if it needs one."""
        return None if self.place is None else Plugins().environment(self.place, self.text)

    def record(self) -> dict[str, Any]:
        """Return the question's record."""
        return {"text": self.text, "want": self.want}


def environment_of(task: str, asked: Plugin | None) -> Plugin | None:
    """Return the environment for a task's questions: the requested one, or the one named like the task, if any."""
    name = Plugin.of(task).name
    if asked is None and name not in Plugins().names("environment"):
        return None
    environment = asked or Plugin(name=name)
    cls = Plugins().class_of("environment", environment.name)
    if unknown := sorted(set(environment.options) - set(cls.model_fields)):  # pyright: ignore[reportAttributeAccessIssue]
        near = did_you_mean(unknown[0], cls.model_fields)  # pyright: ignore[reportAttributeAccessIssue]
        raise PluginError(f"environment {environment.name!r}: there is no option {', '.join(unknown)}{near}")
    return environment


def drawn_questions(spec: Plugin, count: int, seed: int, place: Plugin | None = None) -> list[DatasetQuestion]:
    """Return problems that a task draws itself. Raises `UsageError` for a task that draws none."""
    plugins = Plugins()
    draws: Any = getattr(plugins.class_of("task", spec.name), "drawn", None)
    if draws is None:
        raise UsageError(
            f"the task {spec.name!r} draws no problems: give a file of them, `plait eval FILE --task {spec.name}`; "
            "only tasks with `drawn` draw their own"
        )
    given = draws(count, seed, **spec.options)
    return [DatasetQuestion(plugins.task(spec, text), want, place) for text, want in given]


def of_a_set(task: str) -> str:
    """Return a task's text in which a word behind the name of one of plait's tasks is the set that it draws from.

    >>> of_a_set("reasoning-gym:gsm_symbolic")
    'reasoning-gym:set=gsm_symbolic'
    """
    name, colon, rest = task.partition(":")
    alone = colon and rest and not any(sign in rest for sign in ":=")
    return f"{name}:set={rest}" if alone and name in Plugins().names("task") else task


def read_questions(
    path: Path,
    spec: Plugin,
    text: str = "text",
    want: str = "want",
    place: Plugin | None = None,
    limit: int | None = None,
) -> list[DatasetQuestion]:
    """Read the first `limit` rows of a file; `text` and `want` name the fields, `place` is the environment.

    Raises `UsageError` for a task that cannot be evaluated, and `ConfigError` that names the lines that are no
    questions.
    """
    example = f'{{"{text}": "6 times 7?", "{want}": "42"}}'
    return read_problems(path, question_reader(spec, text, want, place), example, limit)


def question_reader(
    spec: Plugin, text: str, want: str, place: Plugin | None = None
) -> Callable[[Any], DatasetQuestion]:
    """Return a reader of a row's question, which raises `ValueError` for a row without one. Raises `UsageError` for a
    task that cannot be evaluated."""
    plugins = Plugins()
    cls: Any = plugins.class_of("task", spec.name)
    if missing := [name for name in ("render", "extract", "key") if getattr(cls, name) is getattr(Task, name)]:
        raise UsageError(f"the task {spec.name!r} lacks {', '.join(missing)}: an answer has to be found and compared")
    verifies = cls.verify is not Task.verify
    return lambda fields: _question(plugins, spec, fields, text, want, verifies, place)


def _question(
    plugins: Plugins, spec: Plugin, fields: Any, text: str, want: str, verifies: bool, place: Plugin | None
) -> DatasetQuestion:
    read_row: Any = getattr(plugins.class_of("task", spec.name), "row_text", None)
    if read_row is not None and not (isinstance(fields, dict) and text in fields):
        fields = {text: read_row(fields)}
    if not isinstance(fields, dict) or not isinstance(fields.get(text), str):
        names = [str(name) for name in fields] if isinstance(fields, dict) else []
        there = did_you_mean(text, names) + (f" (there are: {', '.join(names)})" if names else "")
        raise ValueError(f"has no text in the field {text!r}{there}; --text names another")
    wanted = fields.get(want)
    if wanted is None and not verifies:
        raise ValueError(
            f"has no {want!r}{did_you_mean(want, fields)}, and the task {spec.name!r} cannot tell what is right; "
            "--want names another"
        )
    question = DatasetQuestion(plugins.task(spec, fields[text]), wanted, place)
    if wanted is not None and place is None:
        question.task.key(wanted)  # said now rather than when the tokens are spent
    return question
