"""Scores of answers over a data lake: KramaBench's by answer type, and Spider 2.0-lite's of tables."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

Cell = int | float | str
_MISSING = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")  # noqa: SIM905
)
"""Cells without a value, as pandas has them."""
ANSWER_TYPES = ("numeric_exact", "numeric_approximate", "string_exact", "list_exact", "list_approximate")
_TRUTHS = {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}


def score_answer(answer: Any, target: Any, answer_type: str) -> float:
    """Return KramaBench's score in [0, 1] of an answer of a type: `success`, `rae_score`, `f1` or `f1_approximate`."""
    try:
        match answer_type:
            case "numeric_exact" | "string_exact":
                return float(_is_equal(answer, target))
            case "numeric_approximate":
                return 1 / (1 + abs(_number(answer) - _number(target)) / abs(_number(target)))
            case _:
                return _score_list(answer, target, answer_type == "list_exact")
    except (TypeError, ValueError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return 0.0


def _number(value: Any) -> float:
    return value if not isinstance(value, str) else float(value.strip("%")) / (100 if value.endswith("%") else 1)


def _is_equal(answer: Any, target: Any) -> bool:
    if isinstance(target, str):
        return isinstance(answer, str) and answer.strip().lower() == target.strip().lower()
    if not isinstance(target, float):
        return bool(answer == target)
    number = _number(answer)
    return min(abs(number - target), abs(number * 100 - target)) / abs(target) < 1e-6


def _score_list(answer: Any, target: Any, exact: bool) -> float:
    if exact and isinstance(answer, str) and isinstance(target, str):
        return float(_is_equal(answer, target))
    target = json.loads(target) if isinstance(target, str) else target
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except json.JSONDecodeError:
            answer = ast.literal_eval(answer)
    answer = list(answer)
    if not len(target):
        return float(not answer)
    firsts = [next((i for i, item in enumerate(answer) if _items_match(item, one, exact)), -1) for one in target]
    hits = [first for first in firsts if first >= 0]
    return 2 / (len(target) / len(hits) + len(answer) / len(set(hits))) if hits else 0.0


def _items_match(item: Any, target: Any, exact: bool) -> bool:
    if isinstance(target, str):
        return target.strip().lower() == str(item).strip().lower()
    if exact and not isinstance(target, int | float):
        return bool(item == target)
    try:
        error = abs(_number(item) - target) / max(abs(target), 1e-12) if isinstance(item, str | int | float) else 9.0
    except ValueError:
        return False
    return error < 1e-6 if exact else error <= 0.01


def tables_match(answer: str, golds: Sequence[Any], columns: Any, ignore_order: Any) -> bool:
    """Return whether a table in CSV has the wanted columns of one of the right tables, by Spider 2.0-lite's rule: in
    any order of columns, numbers within 0.01. `columns`: indexes for each right table; empty: all."""
    try:
        table = _read_columns(answer)
        for i, gold in enumerate(golds):
            right, chosen = _read_columns(gold), columns[i] if columns else ()
            wanted = [right[index] for index in chosen] if chosen else right
            if all(any(_columns_match(one, other, ignore_order) for other in table) for one in wanted):
                return True
    except (ValueError, IndexError):
        pass
    return False


def _columns_match(one: list[Cell], other: list[Cell], ignore_order: bool) -> bool:
    if ignore_order:
        one, other = (sorted(cells, key=lambda cell: (str(cell), not isinstance(cell, str))) for cells in (one, other))
    return len(one) == len(other) and all(
        a == b if isinstance(a, str) or isinstance(b, str) else math.isclose(a, b, abs_tol=0.01)
        for a, b in zip(one, other, strict=True)
    )


def _read_columns(text: str) -> list[list[Cell]]:
    """Return the columns of a CSV table as pandas types them: numbers or truth values if all cells of a column are.
    Missing cells are 0. Raises `ValueError` for a table that pandas cannot read."""
    header, *rows = [row for row in csv.reader(io.StringIO(text)) if row] or [[]]
    if not header or any(len(row) > len(header) for row in rows):
        raise ValueError("the table has no header, or a row with more cells than the header")
    return [_read_column([row[i] if i < len(row) else "" for row in rows]) for i in range(len(header))]


def _read_column(column: list[str]) -> list[Cell]:
    missing = [cell in _MISSING for cell in column]
    digits = "".join(column)  # Python's numbers may have other digits, and underscores
    for read in (int, float, _TRUTHS.__getitem__, str) if digits.isascii() and "_" not in digits else (str,):
        try:
            return [0 if none else read(cell) for cell, none in zip(column, missing, strict=True)]
        except (ValueError, KeyError):
            continue
    return []
