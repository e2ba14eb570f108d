"""Plugins as people write them: `Plugin.of` reads such a text, and here is what only a person's text may say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from ...core.errors import PluginError
from ...core.ops import Plugin
from .trust import own_code

_FILE = re.compile(r"((?:^|[:,.])\s*template\s*=\s*)@([^,]+)")


def typed(text: str | None) -> str | None:
    """Return a plugin's text that a person typed, with a file's text in the place of `plan.template=@FILE` and with
    `FILE.py:Class` as `own_code` has it.

    What a row or a request's body says must not pass here: it would read files of this machine. Raises `PluginError`,
    `UsageError`.
    """

    def held(option: re.Match[str]) -> str:
        try:
            return option[1] + json.dumps(Path(option[2].strip()).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PluginError(f"{text!r}: {option[2].strip()} cannot be read: {error}") from None

    return text and own_code(_FILE.sub(held, text))


def spelled(plugin: Plugin | None) -> str:
    """Return a plugin as it is written on a command line.

    >>> spelled(Plugin(name="sample", options={"n": 8, "answer": {"max_tokens": 64}}))
    'sample:n=8,answer.max_tokens=64'
    """
    if plugin is None:
        return ""
    options = ",".join(f"{key}={_written(value)}" for key, value in _leaves(plugin.options))
    return plugin.name + (f":{options}" if options else "")


def with_option(options: Mapping[str, JsonValue], name: str, value: JsonValue) -> dict[str, JsonValue]:
    """Return options with another value under a name as people write it.

    >>> with_option({"answer": {"top_p": 1}}, "answer.max_tokens", 9)
    {'answer': {'top_p': 1, 'max_tokens': 9}}
    """
    head, dot, rest = name.partition(".")
    inner = options.get(head)
    return {**options, head: with_option(inner if isinstance(inner, dict) else {}, rest, value) if dot else value}


def _leaves(options: dict[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, value in options.items():
        # a plugin among the options, such as a merge, is written whole
        if isinstance(value, dict) and value and "name" not in value and all(map(str.isidentifier, value)):
            yield from _leaves(cast("dict[str, JsonValue]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _written(value: JsonValue) -> str:
    if isinstance(value, str) and value and "," not in value and value == value.strip() and value[0] != "@":
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, separators=(",", ":"))
