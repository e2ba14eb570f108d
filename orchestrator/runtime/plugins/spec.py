"""How a plugin is written on a command line, in the environment and in a configuration file.

The text is only cut up here; whether there is such a plugin, the loader says.
"""

from __future__ import annotations

import json
from typing import cast

from pydantic import JsonValue

from ...core.errors import PluginError
from ...core.ops import Plugin


def parse_plugin(text: str) -> Plugin:
    """Read a plugin as it is written on a command line: `sample:n=8,temperature=0.7`, `their_pkg.mod:Class:n=8`.

    A value is JSON if it reads as JSON (`n=8`, `stop=["a","b"]`), else a string up to the next comma.
    Raises `PluginError`.
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    head, colon, tail = rest.partition(":")
    if rest and "=" not in head:  # a class
        name, rest = f"{name}:{head.strip()}", tail
        if colon and not tail.strip():
            rest = ""
    if not name or name.startswith(":") or name.endswith(":"):
        raise PluginError(f"{text!r} names no plugin: write name, name:option=value,… or pkg.mod:Class")
    options: dict[str, JsonValue] = {}
    while rest:
        key, equals, rest = rest.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise PluginError(f"{text!r}: {key!r} is not an option: write them as option=value,option=value")
        if key in options:
            raise PluginError(f"{text!r}: the option {key!r} is given twice")
        options[key], rest = _value(rest)
    return Plugin(name=name, options=options)


def _no_constant(text: str) -> JsonValue:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _value(text: str) -> tuple[JsonValue, str]:
    """Return the value at the start of `text` and what comes after the comma behind it."""
    text = text.lstrip()
    try:
        value, end = cast("tuple[JsonValue, int]", _decoder.raw_decode(text))
        rest = text[end:].lstrip()
        if not rest or rest.startswith(","):
            return value, rest[1:]
    except ValueError:
        pass
    word, _, rest = text.partition(",")
    return word.strip(), rest
