"""Small functions with mutants that are known to be wrong, for studies of programs that a model writes."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from plait.core.tools.tool import tool

__all__ = [
    "BRANCHED",
    "FAMILIES",
    "HIDDEN",
    "PUBLIC",
    "TESTS",
    "Function",
    "functions",
    "mutants",
    "program_of",
    "returned",
    "run_here",
    "run_python",
]

PUBLIC, HIDDEN = 1, 40
"""Public cases, and cases that grade."""

FAMILIES = (
    "sum(x for x in items if x > {k})",
    "sum(1 for x in items if x % {m} == {r})",
    "max([x * {m} for x in items if x < {k}] + [{r}])",
    "sorted(items)[:{m}]",
    "[x + {k} for x in items if x != {r}]",
    "[x for i, x in enumerate(items) if i % {m} == 0]",
    "min([abs(x - {k}) for x in items] + [99])",
    "sum(x * (i + {r}) for i, x in enumerate(items))",
    "len(set(items)) * {m} + len(items)",
    "[min(max(x, {r}), {k}) for x in items]",
    "sum(a > b + {r} for a, b in zip(items, items[1:]))",
    "[items[i] - items[i - 1] * {m} for i in range(1, len(items))]",
    "sorted(set(items), key=lambda x: (x % {m}, x))",
    "sum(items[:{m}]) - sum(items[-{m}:]) + {k}",
    "[x // {m} for x in items if x >= {r}]",
    "max(items + [0]) - min(items + [{k}])",
    "sum(x * x for x in items if x < {k}) % ({m} + 20)",
    "[i for i, x in enumerate(items) if x > {k}]",
    "items[{r}:] + items[:{r}] + [{k}]",
    "sum(x for x in items if {r} < x < {k})",
)


BRANCHED = (
    """
def f(items):
    total = 0
    for x in items:
        if x % {m} == 0:
            total = total + x * {m}
        elif x > {k}:
            total = total - x + {r}
        else:
            total = total + {k}
    if total > {k} + 15:
        total = total // {m}
    return total
""",
    """
def f(items):
    best = 0
    run = 0
    last = 99
    for x in items:
        if x > last + {r}:
            run = run + {m}
        else:
            run = 1
        if run > best:
            best = run
        last = x
    return best * {k}
""",
    """
def f(items):
    out = []
    for i, x in enumerate(items):
        if i % {m} == {r}:
            y = x * {m}
        else:
            y = x + {k}
        if y > {k} + 10:
            y = {k}
        elif y < {r}:
            y = {r} - y
        out.append(y)
    return out
""",
    """
def f(items):
    low = {r}
    high = 0
    for x in items:
        if x < {m}:
            low = low + x
        elif x > {k}:
            high = high + x - {k}
    if high > low + {m}:
        return high - low
    if low == {r}:
        return {k}
    return low * {m}
""",
    """
def f(items):
    level = {k}
    for x in items:
        if level > {k} + 9:
            level = level - x * {m}
        elif x % {m} == {r}:
            level = level + x
        else:
            level = level + {m}
    if level < 0:
        level = {r} - level
    return level
""",
    """
def f(items):
    found = {r}
    for a, b in zip(items, items[1:] + [{k}]):
        gap = a - b
        if gap < 0:
            gap = b - a
        if gap > {k}:
            found = found + {m}
        elif gap > {m}:
            found = found + 1
    return found
""",
)
"""Whole functions with branches, so that one case runs through some of their lines."""


@dataclass(frozen=True)
class Function:
    """A function, and mutants that pass its public case and are wrong on a hidden input."""

    right: str
    wrong: tuple[str, ...]
    caught: tuple[str, ...]
    """Mutants that fail the public case."""
    inputs: tuple[tuple[int, ...], ...]

    def value(self, program: str, items: Sequence[int]) -> Any:
        """Return a program's output for an input."""
        return returned(program, tuple(items))

    def is_right(self, program: object) -> bool:
        """Whether a program does as the right one on the hidden inputs."""
        hidden = self.inputs[-HIDDEN:]
        return isinstance(program, str) and all(
            returned(program, each) == returned(self.right, each) for each in hidden
        )


@lru_cache(maxsize=200_000)
def returned(program: str, items: tuple[int, ...]) -> Any:
    """Return the value that a trusted program returns, as JSON; `None` for an exception."""
    try:
        return json.dumps(_function(program)(list(items)))
    except Exception:
        return None


@lru_cache(maxsize=10_000)
def _function(program: str) -> Callable[[list[int]], Any]:
    space: dict[str, Any] = {}
    exec(program, space)  # noqa: S102  # a trusted program
    return space["f"]


def program_of(text: str) -> str:
    """Return a program of an expression, or of a whole function."""
    return ast.unparse(ast.parse(text)) if "def f" in text else f"def f(items):\n    return {text}"


def functions(count: int, seed: int, forms: Sequence[str] = FAMILIES, items: int = 1) -> list[Function]:
    """Return functions with at least 8 wrong mutants each, all different. The public case has `items` items: of one
    item, many mutants pass it. Mutants of whole functions have one place changed."""
    random = Random(f"functions/{seed}")
    found: dict[str, Function] = {}
    for turn in range(100 * count):
        if len(found) == count:
            break
        form = forms[turn % len(forms)]
        whole = form.format(k=random.randint(2, 15), m=random.randint(2, 4), r=random.randint(0, 2))
        first = tuple(random.randint(-5, 20) for _ in range(items))
        rest = (tuple(random.randint(-5, 20) for _ in range(random.randint(0, 8))) for _ in range(HIDDEN + 40))
        inputs = (first, *rest)
        right = program_of(whole)
        changes = changed(right) if forms is BRANCHED else mutants(whole)
        made = list(dict.fromkeys(program_of(one) for one in changes))
        random.shuffle(made)
        caught = [each for each in made if returned(each, first) != returned(right, first)]
        wrong = [
            each
            for each in made
            if each not in caught and any(returned(each, items) != returned(right, items) for items in inputs[-HIDDEN:])
        ]
        if len(wrong) >= 8 and len(caught) >= 3 and right not in found:
            found[right] = Function(right, tuple(wrong), tuple(caught), inputs)
    return list(found.values())


def mutants(text: str) -> list[str]:
    """Return expressions with one or two places changed: a constant, a comparison, an operator, a function."""
    ones = changed(text)
    return ones + [two for one in ones for two in changed(one)[:6]]


def changed(text: str) -> list[str]:
    """Return texts with one place changed."""
    count = len(list(ast.walk(ast.parse(text))))
    found: list[str] = []
    for at in range(count):
        for choice in range(3):
            tree = ast.parse(text)
            node = list(ast.walk(tree))[at]
            if _mutate(node, choice):
                found.append(ast.unparse(tree))
    return list(dict.fromkeys(found))


def _mutate(node: ast.AST, choice: int) -> bool:
    """Change a node; false where there is no such change."""
    compared: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
    worked: tuple[type[ast.operator], ...] = (ast.Add, ast.Sub, ast.Mult)
    named = {"min": "max", "max": "min", "sum": "len", "sorted": "list", "len": "sum"}
    match node:
        case ast.Constant(value=int(value)):
            node.value = (value + 1, value - 1, value + 2)[choice]
        case ast.Compare():
            node.ops[0] = [each for each in compared if not isinstance(node.ops[0], each)][choice]()
        case ast.BinOp() if choice < 2:
            node.op = [each for each in worked if not isinstance(node.op, each)][choice]()
        case ast.Name(id=name) if name in named and choice == 0:
            node.id = named[name]
        case _:
            return False
    return True


TESTS = 8
"""Tests that are written for a function."""


@tool
def run_python(code: str) -> dict[str, Any]:
    """Run a trusted program."""
    return run_here(code)


@lru_cache(maxsize=4096)
def run_here(code: str) -> dict[str, Any]:
    """Return the output of `run_python` without a sandbox: the programs are trusted."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        exec(code, {"__name__": "run"})  # noqa: S102  # a trusted program
    return {"status": "done", "stdout": out.getvalue()}
