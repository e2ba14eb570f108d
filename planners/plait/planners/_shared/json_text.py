"""JSON out of a model's text: between other words, in a code fence, after its reasoning, with the usual slips."""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from .steps import strip_reasoning

MAX_CHARS = 60_000
"""Characters of a text that are looked at."""
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_MAX_DEPTH = 24
_MAX_REPAIRED, _MAX_QUOTES = 8_000, 400
"""Characters and quotes of a text that is repaired: the time of that grows with the square of the quotes."""
_FENCE = re.compile(r"```[ \t]*(?:json|JSON)?[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)


def read_object(text: str) -> JsonValue:
    """Return the JSON object in a text, or `None` if none can be parsed.

    Commas too many or missing, other quotes, comments and a text that was cut off are forgiven (json_repair). What the
    text says is never evaluated; nesting deeper than a few dozen levels is no object.
    """
    text = strip_reasoning(text[:MAX_CHARS])
    fenced = [block[1] for block in _FENCE.finditer(text) if "{" in block[1]]
    for candidate in (*fenced, text):
        start, end = candidate.find("{"), candidate.rfind("}")
        if start < 0:
            continue
        open_ended = end <= start or '"' in candidate[end:]  # that brace was inside a string: it was cut off later
        value = _load_json(candidate[start:] if open_ended else candidate[start : end + 1])
        if isinstance(value, dict):
            return value
    return None


def _load_json(text: str) -> JsonValue:
    if _is_too_deep(text):
        return None
    try:
        return _DECODER.raw_decode(text)[0]  # whatever follows the object
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_REPAIRED or text.count('"') + text.count("'") > _MAX_QUOTES:
        return None
    import json_repair  # takes a while to load, and most texts do not need it

    try:
        value = json_repair.loads(text)
        json.dumps(value, allow_nan=False)  # it must be JSON all through
    except Exception:  # a library that guesses: whatever it stumbles over is no JSON
        return None
    return value  # pyright: ignore[reportReturnType]


def _is_too_deep(text: str) -> bool:
    """Whether brackets outside strings nest deeper than any answer needs: a parser's stack, or its time, would
    suffer."""
    depth = 0
    inside = escaped = False
    for char in text:
        if inside:
            inside = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            inside = True
        elif char in "{[":
            depth += 1
            if depth > _MAX_DEPTH:
                return True
        elif char in "}]":
            depth -= 1
    return False
