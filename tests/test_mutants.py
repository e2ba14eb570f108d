"""Which tests a mutant runs: those that execute the statement it changes."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("coverage")

from scripts.mutants import statement_lines

SOURCE = """\
LIMIT = 3 + 4

def wide(n):
    if (
        n > 1
        and n < LIMIT
    ):
        return n * 2
    match n:
        case int() if n == 5:
            return total(
                n,
                6,
            )
"""


@pytest.mark.parametrize(
    ("kind", "text", "lines"),
    [
        (ast.BinOp, "3 + 4", None),  # it runs once, when the module is imported
        (ast.Compare, "n < LIMIT", {4, 5, 6, 7}),  # the head of a block, whichever of its lines
        (ast.BinOp, "n * 2", {8}),
        (ast.Compare, "n == 5", {9, 10}),  # a case's guard, beside the head of its statement
        (ast.Constant, "6", {11, 12, 13, 14}),
    ],
)
def test_a_change_belongs_to_the_lines_of_its_statement(kind: type[ast.AST], text: str, lines: set[int] | None) -> None:
    tree = ast.parse(SOURCE)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    (node,) = (node for node in parents if type(node) is kind and ast.get_source_segment(SOURCE, node) == text)
    assert statement_lines(node, parents) == lines
