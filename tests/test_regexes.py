"""Every regular expression of the tree takes linear time on 10⁵ characters: one line of a model's text, or of a
server's, must not stall the process.

The expressions are found in the source (`re.compile("…")`, `re.sub(r"…", …)`) and in what the modules hold once they
are imported. The texts to try are made from each expression itself: whatever may repeat in it is repeated, behind a
text that leads there, and before a character that fits nowhere.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants as sre, _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import plait
from scripts.checkout import ROOTS, SIDE

ROOT = Path(__file__).parents[1]
FOLDERS = (*ROOTS, *SIDE)
LENGTH = 100_000
LIMIT = 1.0
"""Seconds of processor time. An expression that is quadratic takes ten or more, a linear one some milliseconds."""
CALLS = frozenset(["compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"])
ODD = "\x00"
TRIED = " \t\na1-*_`\"'\\()[]{}<>,.;:=+/#$?|&aZ"
BOUNDED = {
    "orchestrator/plait/core/tools/tool.py:": 10_000,  # pydantic's own message
    "orchestrator/plait/apps/repl/completion.py:": 2_000,  # what a person has typed
    "plait.planners.split.skeleton:_ALONE": 2_000,
    "plait.planners.threads.threads.dialects.apr:_PUZZLE": 200,
    "plait_bench.tasks.countdown:_TEXT": 200,
    "plait_bench.tasks.sums:_TEXT": 200,
    "plait.tasks._expression:_GROUPED": 4_000,
    "plait.planners.tools.llmcompiler.arguments:_ITEMS": 0,  # only put to what `_PLAIN` has matched
}
"""Expressions that are only put to texts of so many characters."""
SEARCHES = "search|finditer|findall|sub|subn|split"
SOURCE = "\n".join(path.read_text() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))


def in_source() -> Iterator[tuple[str, str, int]]:
    """Each expression that is written as a literal, where it stands, and its flags."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[first, *_]):
                        if name in CALLS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                            yield f"{path.relative_to(ROOT)}:{node.lineno}:{name}", first.value, 0
                    case _:
                        pass


def walk_modules() -> Iterator[pkgutil.ModuleInfo]:
    """Yield the modules of plait and of the side distributions."""
    for package in (plait, *(importlib.import_module(Path(root).name.replace("-", "_")) for root in SIDE)):
        yield from pkgutil.walk_packages(package.__path__, f"{package.__name__}.")


def in_modules() -> Iterator[tuple[str, str, int]]:
    """Each compiled expression that a module holds, in containers and tables too."""
    for found in walk_modules():
        if found.name.endswith("__main__"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module = importlib.import_module(found.name)
            except (ImportError, SystemExit):  # an extra that is not installed
                continue
        for name, value in vars(module).items():
            for pattern in patterns(value):
                yield f"{found.name}:{name}", pattern.pattern, pattern.flags


def patterns(value: object) -> Iterator[re.Pattern[str]]:
    match value:
        case re.Pattern() if isinstance(value.pattern, str):
            yield value
        case dict():
            for each in value.values():
                yield from patterns(each)
        case list() | tuple():
            for each in value:
                yield from patterns(each)
        case _:
            pass


def expressions() -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for where, text, flags in (*in_modules(), *in_source()):
        if flags or not any(known == text for known, _ in found):
            found.setdefault((text, flags), where)
    return found


@functools.cache
def is_searched(where: str) -> bool:
    """Whether an expression may start anywhere in a text, and not only where it is told to."""
    name = where.rpartition(":")[2]
    if name in CALLS:
        return name in SEARCHES.split("|") or name == "compile"
    module = sys.modules.get(where.partition(":")[0])
    source = Path(str(module.__file__)).read_text() if module is not None and name.startswith("_") else SOURCE
    name = name.rstrip("0123456789")
    used = set(re.findall(rf"\b{re.escape(name)}(?:\[[^\]]*\])?\.(\w+)\(", source))
    return not used or bool(used & set(SEARCHES.split("|")))


def samples(items: Any, least: int = 0) -> str:
    """A text that fits a sequence of an expression's parts, each repeated at least so often."""
    out = ""
    for op, value in items:
        if op is sre.LITERAL:
            out += chr(value)
        elif op is sre.NOT_LITERAL:
            out += "x"
        elif op is sre.IN:
            out += next(iter(fitting(value)), "")
        elif op is sre.ANY:
            out += "x"
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            out += samples(value[2], least) * max(value[0], least)
        elif op is sre.SUBPATTERN:
            out += samples(value[3], least)
        elif op is sre.ATOMIC_GROUP:
            out += samples(value, least)
        elif op is sre.BRANCH:
            out += samples(value[1][0], least)
    return out


def fitting(members: Any) -> list[str]:
    """Characters that a class takes."""
    pattern = "[" + "".join(_member(each) for each in members) + "]"
    taken = [char for char in TRIED if re.match(pattern, char)]
    return taken or [chr(value) for op, value in members if op is sre.LITERAL]


def _member(member: Any) -> str:
    op, value = member
    if op is sre.NEGATE:
        return "^"
    if op is sre.LITERAL:
        return re.escape(chr(value))
    if op is sre.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    names = {"DIGIT": "\\d", "SPACE": "\\s", "WORD": "\\w"}
    kind = str(value).removeprefix("CATEGORY_")
    return names[kind.removeprefix("NOT_")].upper() if kind.startswith("NOT_") else names[kind]


def attacks(items: Any, before: str = "") -> Iterator[str]:
    """Pieces that may repeat, each behind a text that leads to it: as `(lead, piece)` joined by a mark."""
    items = list(items)
    for at, least in itertools.product(range(len(items)), (0, 1)):
        op, value = items[at]
        lead = before + samples(items[:at], least)
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            if value[1] > 100:
                yield from ((f"{lead}\x01{piece}") for piece in pieces(value[2]))
            yield from attacks(value[2], lead)
        elif op is sre.SUBPATTERN:
            yield from attacks(value[3], lead)
        elif op is sre.ATOMIC_GROUP:
            yield from attacks(value, lead)
        elif op is sre.BRANCH:
            for branch in value[1]:
                yield from attacks(branch, lead)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from attacks(value[1], lead)
    if not before:
        whole = samples(items)
        for cut in {1, len(whole) // 2, len(whole) - 1, len(whole)}:
            if 0 < cut <= len(whole):
                yield f"\x01{whole[:cut]}"


def pieces(items: Any) -> list[str]:
    items = list(items)
    if len(items) == 1 and items[0][0] is sre.IN:
        return fitting(items[0][1])[:6]
    if len(items) == 1 and items[0][0] in (sre.ANY, sre.NOT_LITERAL):
        return ["x", " ", "\n"]
    return [samples(items)] if samples(items) else []


def texts(pattern: str, flags: int) -> list[Callable[[int], str]]:
    """Texts of any length that may be slow to read: a lead with one piece over and over, or both over and over."""
    found = {("", char) for char in " \n\t*"}
    for attack in set(attacks(parser.parse(pattern, flags))):
        lead, piece = attack.split("\x01", 1)
        found |= {(lead, piece), ("", lead + piece)}
    return [functools.partial(text_of, lead, piece) for lead, piece in sorted(found)]


def text_of(lead: str, piece: str, length: int) -> str:
    return lead + piece * (length // len(piece)) + ODD


FOUND = expressions()


def test_there_are_expressions() -> None:
    assert len(FOUND) > 100


@pytest.mark.parametrize(("pattern", "flags"), FOUND, ids=[FOUND[each] for each in FOUND])
def test_an_expression_is_linear(pattern: str, flags: int) -> None:
    where = FOUND[pattern, flags]
    compiled = re.compile(pattern, flags & ~re.UNICODE)
    tried = texts(pattern, flags & ~re.UNICODE)
    tried.sort(key=lambda text: seconds(compiled, where, text(bound(where) // 10)))
    for text in tried[-3:]:
        for length in (bound(where) // 10, bound(where)):
            spent = seconds(compiled, where, text(length))
            assert spent < LIMIT * length / LENGTH + 0.1, f"{spent:.2g} s on {length} characters: {text(60)!r}…"


def bound(where: str) -> int:
    return next((most for start, most in BOUNDED.items() if where.startswith(start)), LENGTH)


def seconds(compiled: re.Pattern[str], where: str, text: str) -> float:
    """Processor time of one expression on one text."""
    start = time.process_time()
    compiled.fullmatch(text)
    compiled.match(text)
    if is_searched(where):
        for _ in compiled.finditer(text):
            pass
    return time.process_time() - start


def test_no_group_is_possessive() -> None:
    """Before Python 3.11.5 such a group may match wrongly, or not end: a body with a long string stalled a server."""
    written = [(place, text) for place, text, _ in in_source()]
    written += [(line, line) for line in SOURCE.splitlines() if re.search(r"\brb?[\"']", line)]
    bare = [(place, re.sub(r"\\.|\[\^?\]?[^]]*\]", "x", text)) for place, text in written]
    assert not [place for place, text in bare if re.search(r"\)[*+?}]\+", text)]
