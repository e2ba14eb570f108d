"""The calls in what a model writes, in both ways of writing them, and what is wrong with those that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from plait import tool
from plait.core.tools.turns import read_calls, unreadable_calls


@tool
def search(query: str, k: int = 3) -> str:
    """Search."""
    return ""


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('search(query="a, b", k=2)', {"query": "a, b", "k": 2}),
        ('search({"query": "a"})', {"query": "a"}),
        ("search[the moon]", {"query": "the moon"}),
        ("search()", {}),
    ],
)
def test_the_arguments_of_an_action(written: str, arguments: dict[str, JsonValue]) -> None:
    (call,) = read_calls(f"Action: {written}\n", "action", 1, [search.spec])
    assert (call.name, call.arguments) == ("search", arguments)


def test_a_native_call_has_its_arguments() -> None:
    text = '<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'
    (call,) = read_calls(text, "native", 1, ())
    assert call.arguments == {"query": "a"}


@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        ('{"name": "search"', "has no end"),
        ("{</tool_call>", "is no JSON"),
        ('{"name": "search", "arguments": 3}</tool_call>', "search"),
    ],
)
def test_what_cannot_be_read_is_told(inside: str, wrong: Any) -> None:
    (complaint,) = unreadable_calls(f"<tool_call>{inside}")
    assert wrong in complaint
