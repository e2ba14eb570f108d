"""What is made of the texts of a way: the calls that are read, which of them count, and whether they are right. Pure,
but for the leaderboard's checker."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plait.core.form import json_in
from plait.core.tools.calls import calls_in

__all__ = ["Calls", "grounded", "made", "once", "read_calls"]

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
    return [{each.name: each.arguments} for value in values for each in calls_in(value) if not each.wrong]


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
