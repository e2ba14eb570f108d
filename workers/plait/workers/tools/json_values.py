"""Turns a tool's return value into plain JSON, or says why that cannot be done."""

from __future__ import annotations

import inspect
import json
import math

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

MAX_DEPTH = 100
"""Deepest nesting of a value. JSON parsers give up at some depth (pydantic at 200), and the event around the value is a
few levels deep itself."""


class NotJson(Exception):
    """Raised for a value that is not JSON; the message names a valid replacement."""


def to_json(value: object) -> JsonValue:
    """Return a value as plain JSON: dataclasses, pydantic models, dates, tuples, sets, enums and the like are turned
    into it. NaN, infinities and lone surrogates are refused: they would be read back from the journal as other values.
    """
    match value:
        case None | bool():
            return value
        case str() if type(value) is str and value.isascii():
            return value
        case int() if type(value) is int and -(2**63) <= value < 2**63:
            return value
        case float() if type(value) is float and math.isfinite(value):
            return value
        case _:
            pass
    kind = type(value).__name__
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise NotJson(f"a {kind}, which is not JSON: return a list")
    try:
        plain: JsonValue = to_jsonable_python(value)
        written = json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeError:
        raise NotJson("bytes or text that is not valid Unicode: encode it, say as base64 or hex") from None
    except RecursionError:
        raise _too_deep(kind) from None
    except PydanticSerializationError as error:
        inner = str(error).partition("unknown type: ")[2] or str(error)
        raise NotJson(
            f"a {kind}, which is not JSON ({inner}): return str, numbers, bool, None, lists, dicts, dataclasses or "
            "pydantic models"
        ) from None
    except ValueError as error:
        if "Circular" in str(error):
            raise NotJson(f"a {kind} that contains itself: return something that ends") from None
        if "float" in str(error):
            raise NotJson("nan or an infinity, which JSON cannot hold: return None or a string in its place") from None
        if "depth" in str(error):
            raise _too_deep(kind) from None
        raise NotJson(f"a value that is not JSON: {error}") from None
    except Exception as error:  # a serialiser of the user's own
        raise NotJson(f"a {kind} that cannot be made JSON: {type(error).__name__}: {error}") from None
    if written.count(b"[") + written.count(b"{") > MAX_DEPTH and _depth(plain) > MAX_DEPTH:
        raise _too_deep(kind)
    return plain


def _too_deep(kind: str) -> NotJson:
    return NotJson(f"a {kind} that is nested more than {MAX_DEPTH} deep: return something flatter")


def _depth(value: JsonValue) -> int:
    level, depth = [value], -1
    while level:
        depth += 1
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = inner
    return depth
