"""Texts of input errors: one clause for each pydantic error, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return str(error).strip().partition("\n")[0]


def pluralise(number: int, what: str) -> str:
    """Return a number with its noun in the right form.

    >>> pluralise(1, "step"), pluralise(3, "step")
    ('1 step', '3 steps')
    """
    return f"{number} {what}" + ("" if number == 1 else "s")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if something known looks like `name`, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def json_path(loc: Iterable[int | str]) -> str:
    """Return a pydantic location as people write it: `replies[2].finish`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def first_of_each(error: ValidationError) -> list[ErrorDetails]:
    """Return the first error of each top-level field (a union has one per member). Unknown fields come before missing
    ones, since an unknown field may be a misspelt one."""
    seen: dict[int | str, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        place = detail["loc"][0] if detail["loc"] else ""
        first = seen.setdefault(place, detail)
        if first["type"] == "missing" and detail["type"] == "extra_forbidden":
            seen[place] = detail
    return list(seen.values())


def explain(subject: str, detail: ErrorDetails, model: object = None) -> str:
    """Return one pydantic error as a clause about `subject`: the expected and the given value. `model`: the class whose
    fields are suggested for an unknown field."""
    return _clause(subject, detail) + suggest_near(detail, model)


def suggest_near(detail: ErrorDetails, model: object) -> str:
    """Return a suggestion for a misspelt word: a field, one of the allowed texts, or true and false."""
    word, known = detail["input"], list[str]()
    match detail["type"]:
        case "extra_forbidden" if detail["loc"]:
            word, known = detail["loc"][-1], _fields_at(model, detail["loc"][:-1])
        case "literal_error":
            known = re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected")))
        case "bool_parsing":
            known = ["true", "false"]
        case "union_tag_invalid":
            context = detail.get("ctx", {})
            word, known = context.get("tag"), re.findall(r"'([^']*)'", str(context.get("expected_tags")))
        case _:
            pass
    return did_you_mean(word, known) if isinstance(word, str) else ""


def _fields_at(kind: object, loc: tuple[int | str, ...]) -> list[str]:
    """Return the field names at a place within a model; for a union, the field names of all members."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not loc:
            return [field.alias or name for name, field in kind.model_fields.items()]
        info = kind.model_fields.get(str(loc[0]))
        return _fields_at(info.annotation, loc[1:]) if info is not None else []
    inner = [part for part in get_args(kind) if not isinstance(part, str)]
    # A list index, a table key and a union member's tag each consume one part of the path; a union consumes none.
    return [name for part in inner for name in (_fields_at(part, loc) or (_fields_at(part, loc[1:]) if loc else []))]


def _clause(subject: str, detail: ErrorDetails) -> str:
    message = detail["msg"]
    if detail["type"] in ("value_error", "assertion_error"):
        return f"{subject}: {message.partition(', ')[2]}"
    if detail["type"] == "missing":
        return f"{subject} is missing"
    if detail["type"] == "extra_forbidden":
        return f"{subject} is not known here"
    expected = message.removeprefix("Input ") if message.startswith("Input ") else f"is wrong: {message}"
    got = reprlib.repr(detail["input"])  # of any depth
    return f"{subject} {expected} (got {got if len(got) <= 80 else got[:77] + '...'})"
