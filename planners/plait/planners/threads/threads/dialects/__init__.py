"""Dialects of spawn and join: the syntax in which a trained model spawns threads and reads their results.

A dialect is a table (`Dialect`) in `published.toml`. Rules that a table cannot express, such as those of a game, are in
a subclass, in a file of its own, that the table names (`rules`).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from plait.core.declarations import Free, TokenCount
from plait.core.errors import PluginError
from plait.core.messages import did_you_mean
from plait.core.regex import ExpressionMatch, expression
from plait.core.splice import SpliceBlock
from plait.core.values import Frozen
from plait.core.vocabulary import Count, FreeText

FreeTexts = Annotated[tuple[str, ...], Free()]
_FIELD = re.compile(r"\{(\w+)\}")
_MAX_ENTRIES = 256
_MAX_MATCHES = 4096  # repeated items are dropped


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a spawn list."""

    echo: str
    """The entry's name in the join block."""
    header: str | None
    """The beginning of the thread's context; `None`: no thread for this entry."""
    label: str = ""
    """The entry's name for people."""


class ThreadLimits(Frozen):
    """Limits and sampling of a dialect's lines."""

    width: Count = Field(default=8, ge=1)
    """Maximum number of threads a round."""
    rounds: Count = Field(default=32, ge=1)
    """Maximum number of rounds of threads that one trajectory may spawn."""
    nesting: Count = Field(default=0, ge=0)
    """Maximum nesting depth of threads that spawn threads."""
    parent_tokens: Annotated[int, TokenCount()] = Field(default=8192, ge=1)
    """Maximum number of tokens between two joins of the parent."""
    child_tokens: Annotated[int, TokenCount()] = Field(default=8192, ge=1)
    """Maximum number of tokens of a thread."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Temperature of the parent."""
    child_temperature: float = Field(default=0.0, ge=0.0)
    """Temperature of the threads."""
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    """Repetition penalty of parent and threads (`Sampling.repetition_penalty`)."""


class Dialect(ThreadLimits):
    """The table. In templates, `{name}` is the named group of the item's regular expression, `{number}` for the
    item's place in the list, from 1, and `{index}` for the same from 0."""

    fork: FreeText = Field(min_length=1)
    """The text that ends a spawn list. Generation stops there, and the text stays in the context."""
    stop: FreeTexts = ()
    """Other texts that end the parent."""
    tags: FreeTexts = ()
    """The control words that are single tokens in a trained model's tokenizer."""
    ask: FreeText = "{prompt}"
    """Template of the prompt: `{prompt}` is the task's, `{text}` the request's text."""
    chat: bool = True
    """Whether a user's message goes through the model's chat template."""
    open: FreeText = ""
    """The text before a spawn list; the last one in the text counts. Empty: the list is the whole text."""
    separator: FreeText = ""
    """Text between items. Empty: an item is every match of the regular expression."""
    item: FreeText | None = None
    """Regular expression of an item. `None`: there is no list; `width` equal threads are spawned."""
    words: bool = False
    """Whether the amount of white space between words is ignored."""
    holes: bool = False
    """Whether a malformed or repeated item keeps its place in the join, as an unsuccessful thread. Otherwise it is
    dropped."""
    inline: bool = False
    """Whether the model continues after a spawn list that is unreadable or over the limits. Otherwise it ends."""
    replaces: bool = False
    """Whether the join replaces the spawn list: the parent then continues from before the last `open`."""
    wrong: FreeText = ""
    """Text that the parent must not write; `right` then replaces it, and the parent continues."""
    right: FreeText = ""
    echo: FreeText = "{number}"
    """Template of an item's name."""
    label: FreeText = ""
    """Template of an item's name for people. Empty: `echo`."""
    repeats: bool = False
    """Whether all items of a round with the same echo get a thread. Otherwise only the first item does."""
    header: FreeText = ""
    """Template of a thread's beginning. It is appended to the parent's context (forked) or stands alone (fresh)."""
    forked: bool = True
    """Whether a thread may continue its parent's context."""
    fresh: bool = False
    """Whether a thread may begin with its header alone, without the parent's context."""
    child_stop: FreeTexts = ()
    """Texts that end a thread."""
    join: Annotated[SpliceBlock, Free()] = SpliceBlock()
    """The form in which the parent reads its threads' results."""
    answer: bool = False
    """Whether the join's `goal` and claim read the answer from the parent's last text, as for a thread."""

    @field_validator("item")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            expression(value)
        return value

    def opening(self, prompt: str, text: str) -> str:
        """Return the parent's prompt; `prompt` is the task's, `text` the request's text."""
        return fill(self.ask, {"prompt": prompt, "text": text})

    def remember(self, notes: str, text: str) -> str:
        """Return the dialect's notes on a trajectory after it wrote or read `text`."""
        return notes

    def items(self, text: str, prompt: str, width: int, notes: str = "", opened: bool = False) -> list[Item]:
        """Return the spawn list at the end of `text`, or an empty list.

        At most `width` items get a thread. The result is also empty when no item can be read. `opened`: the list's
        `open` was already in the text before.
        """
        body = self._list(text, opened)
        if body is None:
            return []
        items: list[Item] = []
        seen: set[str] = set()
        readable = threads = 0
        for number, fields in enumerate(self._entries(body, width), 1):
            if len(items) == _MAX_ENTRIES:
                break
            item = Item("", None)
            if fields is not None:
                readable += 1
                fields = {**fields, "number": str(number), "index": str(number - 1)}
                echo = fill(self.echo, fields)
                fresh = (echo not in seen or self.repeats) and threads < width
                seen.add(echo)
                label = fill(self.label or self.echo, fields).strip().rstrip(":")
                item = Item(echo, self.begin(fields, prompt, notes) if fresh else None, label)
                threads += item.header is not None
            if item.header is not None or self.holes:
                items.append(item)
        return items if readable else []

    def begin(self, fields: dict[str, str], prompt: str, notes: str) -> str | None:
        """Return the header of an item's thread, or `None` if the item is invalid. `prompt` is the parent's prompt,
        `notes` its notes (`remember`)."""
        return fill(self.header, fields)

    def nothing(self, items: list[Item]) -> str:
        """Return the join block of a round in which no thread was run."""
        block = self.join
        entries = [
            fill(block.none, {"item": item.echo, "number": str(i), "index": str(i - 1)})
            for i, item in enumerate(items, 1)
        ]
        return block.head + block.separator.join(entries) + block.tail

    def claim(self, block: str) -> str | None:
        """Return the claim of the first successful thread in a join block, in the form that a task reads."""
        table = self.join
        if table.separator:
            entries = block.removeprefix(table.head).removesuffix(table.tail).split(table.separator)
            claim = next((entry for entry in entries if entry != table.none), None)
        else:
            mark = table.hit.partition("{")[0]
            claim = block.partition(mark)[2].partition(mark)[0] if mark and mark in block else None
        if claim is None or not table.claim_item:
            return claim
        return table.join_claim(claim) or None

    def _list(self, text: str, opened: bool) -> str | None:
        """Return the text between the last `open` and the `fork` that the text ends with."""
        text = text.rstrip()
        if not text.endswith(self.fork):
            return None
        body = text[: -len(self.fork)]
        start = body.rfind(self.open)
        if start < 0:
            return body if opened else None
        return body[start + len(self.open) :]

    def _entries(self, body: str, width: int) -> list[dict[str, str] | None]:
        """Return the fields of each entry, with `None` for an unreadable entry."""
        if self.item is None:
            return [{} for _ in range(width)]
        if not self.separator:
            body = " ".join(body.split()) if self.words else body
            matches = itertools.islice(expression(self.item).finditer(body), _MAX_MATCHES)
            return [_groups(entry) for entry in matches]
        parts = body.split(self.separator, _MAX_ENTRIES)[:_MAX_ENTRIES]
        item = expression(self.item)
        matches = (item.fullmatch(" ".join(part.split()) if self.words else part) for part in parts)
        return [_groups(match) if match else None for match in matches]


def _groups(match: ExpressionMatch) -> dict[str, str]:
    return {name: value or "" for name, value in match.named.items()}


def fill(template: str, fields: dict[str, str]) -> str:
    """Fill each field into a template once; unknown names stay unchanged."""
    return _FIELD.sub(lambda field: fields.get(field[1], field[0]), template)


def names() -> list[str]:
    """Return the names of the dialects, in alphabetical order."""
    return sorted(_tables())


def load(name: str) -> Dialect:
    """Return a dialect by name. Raises `PluginError` with the known names."""
    hyphened = name.replace("_", "-")
    if hyphened not in names():
        there = ", ".join(names())
        raise PluginError(
            f"there is no dialect {name!r}{did_you_mean(name, names())}; there are: {there}; or a table of your own"
        )
    return _tables()[hyphened]


@functools.cache
def _tables() -> dict[str, Dialect]:
    tables = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    return {name: _class_of(table.pop("rules", "")).model_validate(table) for name, table in tables.items()}


def _class_of(rules: str) -> type[Dialect]:
    """Return the class that a table names as `module:Class`."""
    module, _, name = rules.partition(":")
    return getattr(importlib.import_module(f".{module}", __name__), name) if rules else Dialect
