"""Extracts programs from a model's text, for tasks that ask for a Python function."""

from __future__ import annotations

import ast
import re

from ..core.programs import MAIN

_LANGUAGE = re.compile(r"\A[ \t]*(?:python|py)[\d.]*(?!\w)", re.IGNORECASE)


def program_in(text: str, entry: str) -> str | None:
    """Return the last code block that defines `entry` (for `MAIN`: that is a program). Without blocks, return the whole
    text if it does. Otherwise return `None`. Blocks that begin with a line `# file: NAME` are one program.

    A later block often shows only how to use the program.
    """
    blocks = text.split("```")[1::2] or [text]
    programs = [_LANGUAGE.sub("", block).strip() for block in blocks]
    if sum(program.startswith("# file: ") for program in programs) > 1:
        programs.append("\n".join(program for program in programs if program.startswith("# file: ")))
    return next((program for program in reversed(programs) if _defines(program, entry)), None)


def tree_of(program: str) -> str:
    """Return a program's syntax tree as text: comments and layout make no difference."""
    try:
        return ast.dump(ast.parse(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "!" + program


def _defines(program: str, entry: str) -> bool:
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if entry == MAIN:
        return bool(tree.body)
    return any(isinstance(node, ast.FunctionDef) and node.name == entry for node in tree.body)
