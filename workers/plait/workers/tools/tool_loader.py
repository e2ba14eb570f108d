"""Reads the tools out of a user's Python file."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
import zlib
from errno import ENOENT
from pathlib import Path
from typing import Any, cast

from plait.core.errors import ConfigError
from plait.core.messages import did_you_mean
from plait.core.tools.tool import Tool

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
