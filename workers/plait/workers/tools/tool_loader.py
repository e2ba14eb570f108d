"""Reads the tools out of a user's Python file, and turns a tool's return value into plain JSON, or says why that cannot
be done."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import re
import sys
import traceback
import zlib
from errno import ENOENT
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from plait.core.errors import ConfigError
from plait.core.messages import did_you_mean
from plait.core.tools.tool import Tool

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


AnyTool = Tool[..., Any]


def load_tools(path: str | Path) -> list[AnyTool]:
    """Import FILE.py and return its `@tool` functions in the order in which they stand there; of FILE.py:NAME that one.

    The file's folder is put at the end of `sys.path`, so that it can import its neighbours.

    Raises:
        ConfigError: no such file, not Python, it raised, or it holds no tool.
    """
    name_after = re.search(r"(?<=\.py):(\w+)$", str(path))
    only = name_after[1] if name_after else None
    path = str(path).removesuffix(f":{only}")
    file = Path(path).expanduser().resolve()
    if not file.is_file() or file.suffix != ".py":
        what = "is not a Python file" if file.exists() else "does not exist"
        absent = None if file.exists() else FileNotFoundError(ENOENT, "", str(file))
        raise ConfigError(f"the tools file {path} {what}: give a FILE.py with @tool functions") from absent
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    name = f"plait_tools_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the tools file {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look their module up there
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise ConfigError(f"the tools file {path} is not valid Python: line {error.lineno}: {error.msg}") from None
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        where = f"line {lines[-1]}: " if lines else ""
        raise ConfigError(f"the tools file {path} cannot be loaded: {where}{type(error).__name__}: {error}") from None
    values = cast("list[object]", list(vars(module).values()))
    tools = [cast("AnyTool", value) for value in values if isinstance(value, Tool)]
    if not tools:
        raise ConfigError(f"the tools file {path} has no tools: put @tool (from plait import tool) on a function")
    if only is not None:
        named = {name: value for name, value in vars(module).items() if isinstance(value, Tool)}
        if only not in named:
            raise ConfigError(f"the tools file {path} has no tool {only!r}{did_you_mean(only, named)}")
        tools = [cast("AnyTool", named[only])]
    return list({id(tool): tool for tool in tools}.values())
