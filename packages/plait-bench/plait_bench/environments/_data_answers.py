"""Comparison of answers about data: texts, numbers, lists and tables."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import cast

from pydantic import JsonValue

from plait.core.values import as_text


def alike(answer: JsonValue, wanted: JsonValue, within: float = 0.0, ordered: bool = False) -> bool:
    """Return whether an answer equals the expected one: texts ignore case and spaces, numbers may differ by the share
    `within` of the expected value, and lists and table rows have any order unless `ordered`.

    >>> alike('[["Bo", 3.01], ["ann", 4]]', [["Ann", 4], ["Bo", 3]], 0.01)
    True
    """
    if answer is None:
        return False
    if isinstance(wanted, list):
        given = _list(answer)
        if given is None or len(given) != len(wanted):
            return False
        left, right = (given, wanted) if ordered else (_sorted(given), _sorted(wanted))
        # cells of a row stay in their order
        return all(alike(one, other, within, True) for one, other in zip(left, right, strict=True))
    one, other = _key(answer), _key(wanted)
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return abs(one - other) <= Fraction(within) * abs(other)
    return one == other


def _list(answer: JsonValue) -> list[JsonValue] | None:
    """Return a list, or the one that a text is in JSON."""
    if isinstance(answer, str):
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError):
            return None
    return cast("list[JsonValue]", answer) if isinstance(answer, list) else None


def _sorted(values: list[JsonValue]) -> list[JsonValue]:
    """Return values in a canonical order, texts first, so that rows are sorted by their exact parts."""
    return sorted(values, key=_rank)


def _rank(value: JsonValue) -> list[tuple[bool, str, Fraction]]:
    keys = [_key(cell) for cell in value] if isinstance(value, list) else [_key(value)]
    ranks = [(isinstance(key, Fraction), "" if isinstance(key, Fraction) else key, _number(key)) for key in keys]
    return sorted(ranks)


def _number(key: str | Fraction) -> Fraction:
    return key if isinstance(key, Fraction) else Fraction(0)


def _key(answer: JsonValue) -> str | Fraction:
    """Return a text without regard to case and spaces, or the value of a number."""
    text = " ".join(as_text(answer).split()).casefold()
    try:
        return Fraction(text.removesuffix(".").replace("_", "?"))
    except (ValueError, ZeroDivisionError):
        return text
