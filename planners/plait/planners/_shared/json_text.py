"""Read JSON from a model's text: inside prose or a code fence, after reasoning, with the usual syntax errors."""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from .steps import strip_reasoning

MAX_CHARS = 60_000
"""Maximum number of characters that are searched."""
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_MAX_DEPTH = 24
_MAX_REPAIRED, _MAX_QUOTES = 8_000, 400
"""Maximum number of characters and quotes of a text to repair: repair time grows with the square of the quotes."""
_FENCE = re.compile(r"```[ \t]*(?:json|JSON)?[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)


def read_object(text: str) -> JsonValue:
    """Return the JSON object in a text, or `None` if none can be parsed.

    It repairs extra or missing commas, other quotes, comments and truncated text (json_repair). It never evaluates the
    text, and rejects nesting deeper than a few dozen levels.
    """
    text = strip_reasoning(text[:MAX_CHARS])
    fenced = [block[1] for block in _FENCE.finditer(text) if "{" in block[1]]
    for candidate in (*fenced, text):
        start, end = candidate.find("{"), candidate.rfind("}")
        if start < 0:
            continue
        open_ended = end <= start or '"' in candidate[end:]  # The brace was inside a string of truncated text.
        value = _load_json(candidate[start:] if open_ended else candidate[start : end + 1])
        if isinstance(value, dict):
            return value
    return None


def _load_json(text: str) -> JsonValue:
    if _is_too_deep(text):
        return None
    try:
        return _DECODER.raw_decode(text)[0]  # ignores the text after the object
    except (ValueError, RecursionError):
        pass
    if len(text) > _MAX_REPAIRED or text.count('"') + text.count("'") > _MAX_QUOTES:
        return None
    import json_repair  # imported here: it loads slowly, and most texts need no repair

    try:
        value = json_repair.loads(text)
        json.dumps(value, allow_nan=False)  # the whole text must be JSON
    except Exception:  # The library guesses, so any error means that the text is not JSON.
        return None
    return value  # pyright: ignore[reportReturnType]


def _is_too_deep(text: str) -> bool:
    """Return whether brackets outside strings nest too deeply, which would cost a parser too much stack or time."""
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
