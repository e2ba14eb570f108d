"""What is made of the texts of a way: the calls that are read, which of them count, and whether they are right. Pure,
but for the leaderboard's checker."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.form import json_in
from plait.core.tools.calls import read_calls_in

__all__ = ["MISTAKES", "Calls", "grounded", "made", "mistake", "once", "read_calls"]

Calls = list[dict[str, Any]]
"""Calls as the leaderboard has them: `{name: arguments}`."""
_WORD = re.compile(r"[a-z0-9.]+")


def read_calls(text: str) -> Calls:
    """Return the whole calls in a list of JSON, also where it was cut off: a call counts once it is written."""
    values = [json_in(text)]
    if text.lstrip().startswith("[") and not isinstance(values[0], list):
        decoder, place, values = json.JSONDecoder(), text.index("[") + 1, []
        while (start := text.find("{", place)) >= 0:
            try:
                value, place = decoder.raw_decode(text, start)
            except ValueError:
                break
            values.append(value)
    return [{each.name: each.arguments} for value in values for each in read_calls_in(value) if not each.wrong]


def once(calls: Sequence[dict[str, Any]]) -> Calls:
    """Return calls without those that came before."""
    found: dict[str, dict[str, Any]] = {}
    for each in calls:
        found.setdefault(json.dumps(each, sort_keys=True), each)
    return list(found.values())


def grounded(calls: Sequence[dict[str, Any]], question: str, functions: Sequence[Mapping[str, Any]]) -> Calls:
    """Return calls without optional arguments that the question does not speak of, each once."""
    said = set(_WORD.findall(question.casefold()))
    must = {each["name"]: set(each["parameters"].get("required", [])) for each in functions}
    out: Calls = []
    for call in calls:
        for name, arguments in call.items():
            needed = must.get(name, set())
            kept = {key: value for key, value in arguments.items() if key in needed or _spoken(value, said)}
            out.append({name: kept})
    return once(out)


def _spoken(value: Any, said: set[str]) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return f"{value:g}" in said
    words = _WORD.findall(json.dumps(value).casefold() if not isinstance(value, str) else value.casefold())
    return bool(words) and sum(each in said for each in words) * 2 >= len(words)


def made(samples: Sequence[str], share: float = 0.5) -> Calls:
    """Return the calls that at least this share of several lists have."""
    lists = [once(read_calls(each)) for each in samples]
    counts = Counter(json.dumps(call, sort_keys=True) for each in lists for call in each)
    return [json.loads(text) for text, count in counts.items() if count >= share * len(lists)]


MISTAKES = (
    "no call read", "too few calls", "too many calls", "another function", "an argument is missing",
    "an argument too many", "another value",
)  # fmt: skip
"""What is wrong with calls: the first of these that holds."""


def mistake(calls: Calls, right: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]) -> str:
    """Return the faults of calls that the checker rejects. `right`: as the leaderboard has them, the values
    that each argument may have; one with `""` among them may be left out."""
    if not calls:
        return MISTAKES[0]
    if len(calls) != len(right):
        return MISTAKES[1] if len(calls) < len(right) else MISTAKES[2]
    ours, theirs = ([*call.items()] for call in (_joined(calls), _joined(right)))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return MISTAKES[3]
    pairs = [(set(mine), want) for (_, mine), (_, want) in zip(ours, theirs, strict=True)]
    if any({name for name, values in want.items() if "" not in values} - names for names, want in pairs):
        return MISTAKES[4]
    return MISTAKES[5] if any(names - set(want) for names, want in pairs) else MISTAKES[6]


def _joined(calls: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Any]:
    """Return calls by name and place among those of that name, in the order of the names."""
    places: Counter[str] = Counter()
    out: dict[tuple[str, int], Any] = {}
    for call in calls:
        for name, arguments in call.items():
            out[name, places[name]] = arguments
            places[name] += 1
    return dict(sorted(out.items(), key=lambda pair: pair[0]))
