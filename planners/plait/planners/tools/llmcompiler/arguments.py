"""Parse the arguments of a task in LLMCompiler's language: a text like `"age of X", context=["$1"], k=3` becomes JSON
values. Nothing is evaluated, and a reference is still a string here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import NoReturn

from pydantic import JsonValue

QUOTES = "\"'"
IN_STRING = {quote: re.compile(rf"{quote}|\\.", re.DOTALL) for quote in QUOTES}
"""Matches a quote, or a backslash with the escaped character, inside a string."""
_DEEPEST = 40
_KEY = re.compile(r"[ \t\r\n]*([^\W\d][\w\-]*)[ \t]*=(?!=)[ \t\r\n]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_INT = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,299})")
_FLOAT = re.compile(r"[+-]?(?:[0-9]{1,300}\.[0-9]{0,300}|\.[0-9]{1,300}|[0-9]{1,300}(?=[eE]))(?:[eE][+-]?[0-9]{1,4})?")
_WORDS: dict[str, JsonValue] = {"true": True, "false": False, "none": None, "null": None}
_REFERENCE = re.compile(r"\$(?:[0-9]+|\{[0-9]+(?:\.output)?\})(?:\.output)?")
_BARE_STOP = re.compile(r"[,()\[\]{}]")
_KEY_STOP = re.compile(r"[:,\]})]")
_ESCAPE = re.compile(r"\\(?:([\\\"'/])|([ntr])|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\n))")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}
_NO_QUOTE_BEFORE_KEY = re.compile(r"(?=, *[A-Za-z_]\w* *= *[\[{\"'$0-9])")
_ATOM = r"""(?:"[^"\\]*"|\$[0-9]+|\$\{[0-9]+\}|-?(?:0|[1-9][0-9]{0,17}))"""
_ATOMS = re.compile(_ATOM)
_ITEM = rf"(?:(?P<key>[A-Za-z_][A-Za-z0-9_]*)=)?(?P<value>{_ATOM}|\[(?:{_ATOM}(?:, ?{_ATOM})*)?\])"
_ITEMS = re.compile(_ITEM)
_UNNAMED = re.sub(r"\?P<\w+>", "?:", _ITEM)
_PLAIN = re.compile(rf"(?:{_UNNAMED}(?:, ?{_UNNAMED})*)?\)")
_CLOSERS = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its keyword (if any), its value, and its source text."""

    key: str | None
    value: JsonValue
    raw: str
    bare: bool = False
    """Whether the argument is text without quotes."""


@dataclass(slots=True)
class Arguments:
    """All arguments of a task, in order, with their text and its repairs."""

    items: list[Argument]
    raw: str
    repairs: list[str] = field(default_factory=list[str])

    @property
    def bare(self) -> bool:
        """Whether some text without quotes may be one argument or several, which only the tool's schema decides."""
        return any(item.bare for item in self.items) and all(item.key is None for item in self.items)


class _Odd(Exception):
    """Raised if the text is not a list of arguments."""


def opens(text: str, at: int, before: str = "(") -> bool:
    """Return whether the quote at `text[at]` opens a string: a string starts only where a value can start. `before` is
    the text before `text`."""
    at -= 1
    while at >= 0 and text[at] in " \t\r\n":
        at -= 1
    return (text[at] if at >= 0 else before) in "([{,=:"


def closes(text: str, at: int) -> bool:
    """Return whether the quote at `text[at]` closes its string: a string ends only where a value can end. So a string
    may contain its own quote: `'Schindler's List'`."""
    at += 1
    while at < len(text) and text[at] in " \t\r":
        at += 1
    return at >= len(text) or text[at] in ",)]}:\n"


def parse_arguments(raw: str) -> Arguments:
    """Return the arguments in a text. Never raises: text of an unknown form is one argument without quotes."""
    raw = raw.strip()
    if not raw:
        return Arguments([], raw)
    parser = _Parser(raw)
    try:
        return Arguments(parser.arguments(), raw, parser.repairs)
    except _Odd:
        pass
    # Each try repairs one usual mistake of models; the first try that gives arguments wins.
    mended = _NO_QUOTE_BEFORE_KEY.sub(raw[0], raw, count=1) if raw[0] in QUOTES else raw
    if mended != raw:
        parser = _Parser(mended)
        try:
            return Arguments(parser.arguments(), mended, ["a quote was missing before a keyword", *parser.repairs])
        except _Odd:
            pass
    if raw.endswith(")"):
        parser = _Parser(raw[:-1])
        try:
            arguments = Arguments(parser.arguments(), raw[:-1], ["there was one ')' too many", *parser.repairs])
            # Text without quotes may end in its own parenthesis.
            if not any(item.bare for item in arguments.items):
                return arguments
        except _Odd:
            pass
    text = raw
    if len(raw) >= 2 and raw[0] == raw[-1] and raw[0] in QUOTES:
        text = _unescape(raw[1:-1])
        return Arguments([Argument(None, text, raw)], raw, ["odd quotes: taken as one text"])
    return Arguments([Argument(None, text, raw, bare=True)], raw)


def read_plain(line: str, at: int) -> Arguments | None:
    """Return the arguments from `at` to the closing parenthesis at the line's end if they have the prompt's form, else
    `None`. A fast path: `parse_arguments` returns the same, more slowly."""
    if _PLAIN.fullmatch(line, at) is None:
        return None
    items: list[Argument] = []
    for item in _ITEMS.finditer(line, at):
        key, raw = item.groups()
        value = [_atom(atom) for atom in _ATOMS.findall(raw)] if raw[0] == "[" else _atom(raw)
        items.append(Argument(key, value, raw))
    return Arguments(items, line[at:-1])


def _atom(written: str) -> JsonValue:
    if written[0] == '"':
        return written[1:-1]
    return written if written[0] == "$" else int(written)


class _Parser:
    """A recursive descent parser of one text. It reads each character a bounded number of times."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.repairs: list[str] = []

    def arguments(self) -> list[Argument]:
        items: list[Argument] = []
        while self._skip() < len(self.text):
            key = _KEY.match(self.text, self.at)
            if key is not None:
                self.at = key.end()
            start = self.at
            value, bare = self.value("", 0)
            items.append(Argument(key[1] if key else None, value, self.text[start : self.at].strip(), bare))
            if self._skip() < len(self.text):
                if self.text[self.at] != ",":
                    self._odd()
                self.at += 1
        return items

    def value(self, closer: str, depth: int) -> tuple[JsonValue, bool]:
        """Return a value that ends at a comma, at `closer`, or at the end, and whether it is text without quotes."""
        if depth > _DEEPEST:
            self._odd()
        self._skip()
        char = self.text[self.at : self.at + 1]
        if char and char in QUOTES:
            return self._string(char), False
        if char == "[" or (char == "(" and not closer):
            return self._list(_CLOSERS[char], depth), False
        if char == "{":
            return self._dict(depth), False
        return self._bare(closer)

    def _string(self, quote: str) -> str:
        text = self.text
        if text.startswith(quote * 3, self.at):
            start = self.at + 3
            end = text.find(quote * 3, start)
            if end < 0:
                self.repairs.append("a string had no end")
                end = len(text)
            self.at = min(end + 3, len(text))
            return _unescape(text[start:end])
        start = at = self.at + 1
        while (stop := IN_STRING[quote].search(text, at)) is not None:
            at = stop.end()
            if stop[0] == quote and closes(text, stop.start()):
                self.at = at
                return _unescape(text[start : stop.start()])
        self.at = len(text)
        self.repairs.append("a string had no end")
        return _unescape(text[start:].rstrip())

    def _list(self, closer: str, depth: int) -> list[JsonValue]:
        self.at += 1
        items: list[JsonValue] = []
        while True:
            if self._skip() >= len(self.text):
                self.repairs.append(f"{closer!r} was missing")
                return items
            if self.text[self.at] == closer:
                self.at += 1
                return items
            items.append(self.value(closer, depth + 1)[0])
            self._comma(closer)

    def _dict(self, depth: int) -> dict[str, JsonValue]:
        self.at += 1
        items: dict[str, JsonValue] = {}
        while True:
            if self._skip() >= len(self.text):
                self.repairs.append("'}' was missing")
                return items
            if self.text[self.at] == "}":
                self.at += 1
                return items
            if self.text[self.at] in QUOTES:
                key = self._string(self.text[self.at])
            else:
                stop = _KEY_STOP.search(self.text, self.at)
                end = stop.start() if stop else len(self.text)
                key, self.at = self.text[self.at : end].strip(), end
            if self._skip() >= len(self.text) or self.text[self.at] != ":":
                self._odd()
            self.at += 1
            items[key] = self.value("}", depth + 1)[0]
            self._comma("}")

    def _comma(self, closer: str) -> None:
        """Skip the comma between two items, or stop at the closing bracket."""
        if self._skip() >= len(self.text) or self.text[self.at] == closer:
            return
        if self.text[self.at] != ",":
            self._odd()
        self.at += 1

    def _bare(self, closer: str) -> tuple[JsonValue, bool]:
        start, depth, at = self.at, 0, self.at
        while (stop := _BARE_STOP.search(self.text, at)) is not None:
            char, at = stop[0], stop.end()
            if depth == 0 and char in ("," + closer):
                at -= 1
                break
            depth += 1 if char in "([{" else -1 if char in ")]}" else 0
            # A closing bracket without an opening bracket is part of the text.
            if depth < 0:
                depth = 0
        else:
            at = len(self.text)
        self.at = at
        written = self.text[start:at].strip()
        if not written:
            self._odd()
        if written.lower() in _WORDS:
            return _WORDS[written.lower()], False
        if _INT.fullmatch(written):
            return int(written), False
        if _FLOAT.fullmatch(written) and math.isfinite(number := float(written)):
            return number, False
        return written, _REFERENCE.fullmatch(written) is None

    def _skip(self) -> int:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.at

    def _odd(self) -> NoReturn:
        raise _Odd(self.at)


def _unescape(text: str) -> str:
    """Replace escapes by their characters. Unknown escapes stay unchanged."""
    return _ESCAPE.sub(_escaped, text) if "\\" in text else text


def _escaped(escape: re.Match[str]) -> str:
    same, control, four, two = escape[1], escape[2], escape[3], escape[4]
    if same:
        return same
    if control:
        return _CONTROL[control]
    if four or two:
        code = int(four or two, 16)
        return escape[0] if 0xD800 <= code < 0xE000 else chr(code)
    return ""
