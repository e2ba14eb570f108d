"""Programs in what a model has written, for the tasks that ask for a Python function."""

from __future__ import annotations

import ast

__all__ = ["program_in", "tree_of"]


def program_in(text: str, entry: str) -> str | None:
    """Return the last block of code, or the whole text if it is a program; `None` if that does not define `entry`."""
    blocks = text.split("```")[1::2]
    program = blocks[-1].removeprefix("python").removeprefix("py").strip() if blocks else text.strip()
    return program if _defines(program, entry) else None


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
    return any(isinstance(node, ast.FunctionDef) and node.name == entry for node in tree.body)
