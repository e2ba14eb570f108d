"""Calls that a tool takes for the same have one canonical form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import JsonValue

from plait import tool
from plait.core.tools.calls import canonical, canonical_text


@tool
def book(city: str, nights: int = 1, pets: bool = False, limit: float | None = None, tags: set[str] = frozenset()):  # type: ignore[assignment]
    """Book a room."""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"city": "Rome"}, {"nights": 1, "city": "Rome"}, True),
        ({"city": "Rome", "nights": "2"}, {"city": "Rome", "nights": 2.0}, True),
        ({"city": "Rome", "pets": "false"}, {"city": "Rome"}, True),
        ({"city": "Rome", "limit": None}, {"city": "Rome"}, True),
        ({"city": "Rome", "limit": "2.50"}, {"city": "Rome", "limit": 2.5}, True),
        ({"city": "Rome", "tags": ["b", "a", "b"]}, {"city": "Rome", "tags": ["a", "b"]}, True),
        ({"city": "2"}, {"city": 2}, False),
        ({"city": "Rome"}, {"city": "rome"}, False),
        ({"city": "Rome", "nights": 2}, {"city": "Rome", "nights": 3}, False),
        ({"city": "Rome", "nights": "two"}, {"city": "Rome"}, False),
        ({"city": "Rome", "pets": True}, {"city": "Rome", "pets": 1}, False),
    ],
)
def test_what_a_tool_takes_for_the_same(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    forms = [canonical_text(each, book.parameters) for each in (one, other)]
    assert (forms[0] == forms[1]) is same


def test_what_the_tool_can_read_is_what_it_reads() -> None:
    given_ = {"city": "Rome", "nights": "2", "limit": "1e2"}
    assert book.bind(canonical(given_, book.parameters))["nights"] == book.bind(given_)["nights"] == 2
    assert book.bind(canonical(given_, book.parameters))["limit"] == 100


def test_without_a_schema_only_the_way_of_writing_is_left_out() -> None:
    assert canonical_text({"b": 1.0, "a": {"d": 1, "c": "2"}}) == '{"a": {"c": "2", "d": 1}, "b": 1}'
    assert canonical({"a": 1, "b": 2}, None, {"b"}) == {"a": 1}


ANY: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=True)
    | st.sampled_from(["1", "true", "x", "inf", "nan"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)
SCHEMA: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([{}, {"type": "integer"}, {"type": ["number", "null"]}, {"$ref": "#/$defs/A"}, {"$ref": "#"}]),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "items": inner,
            "anyOf": st.lists(inner),
            "uniqueItems": st.booleans(),
            "additionalProperties": inner,
            "$defs": st.just({"A": {"$ref": "#/$defs/A"}}),
        },
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("ab"), ANY, max_size=2), SCHEMA)
def test_any_schema_and_any_arguments(arguments: dict[str, JsonValue], schema: dict[str, JsonValue]) -> None:
    once = canonical(arguments, schema)
    assert canonical_text(once, schema) == canonical_text(arguments, schema), "the form of the form is the form"


def test_a_number_of_an_enumeration_is_read_as_a_number() -> None:
    """An enumeration names no type: that of its values counts."""
    halves = {"type": "object", "properties": {"x": {"enum": [0.5, 1.5]}, "y": {"enum": [1.0, 2]}}}
    assert canonical({"x": "0.5", "y": "2"}, halves) == {"x": 0.5, "y": 2}
