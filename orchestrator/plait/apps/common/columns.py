"""Find a file's columns of questions and of right answers: by their names, else by their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ...core.errors import UsageError
from ...core.messages import did_you_mean

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
