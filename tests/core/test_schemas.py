"""JSON schemas of tools: what they need and make, and which value can be whose argument."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from plait import tool
from plait.core.tools.schemas import arguments, is_assignable, kind, made_kinds, needed_kinds, part, schema_of


class Flight(BaseModel):
    id: str
    seats: list[int]


@tool
def flights(to: str, day: str) -> list[Flight]:
    """Find flights."""
    return []


@tool
def book(flight_id: str, seat: int, passportId: str | None = None) -> dict[str, str]:  # noqa: N803
    """Book a seat."""
    return {}


RETURNED = flights.spec.returns


def test_a_tools_schema_says_what_it_needs_and_makes():
    assert needed_kinds(book.parameters) == {"flight_id": "flight_id"}
    assert needed_kinds(flights.parameters) == {}, "a city and a day are said by the question"
    assert made_kinds(RETURNED) == {"flight", "flight_id"}
    assert needed_kinds({"properties": {"userIds": {"type": "array", "items": {}}}, "required": ["userIds"]}) == {
        "userIds": "user_id"
    }
    assert arguments(book.parameters)["passportId"] == {"type": "string"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [(["0", "id"], "string"), (["0", "seats", "3"], "integer"), (["0"], "object"), (["id"], None), (["0", "x"], None)],
)
def test_a_part_of_a_value_has_a_schema_or_is_not_there(path: list[str], kind: str | None):
    found = part(RETURNED, path)
    assert kind == (None if found is None else found.get("type"))


def test_of_what_nothing_is_known_any_part_may_be_there():
    assert part({}, ["a", "0"]) == {}
    assert part({"type": "object", "additionalProperties": {"type": "string"}}, ["a"]) == {"type": "string"}


@pytest.mark.parametrize(
    ("given", "wanted", "good"),
    [
        ({"type": "integer"}, {"type": "number"}, True),
        ({"type": "number"}, {"type": "integer"}, False),
        ({}, {"type": "integer"}, True),
        ({"type": "string", "format": "airport"}, {"type": "string", "format": "city"}, False),
        ({"type": "string", "format": "airport"}, {"type": "string"}, True),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "airport"}, True),
        ({"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}, False),
        ({"type": "object", "title": "Flight"}, {"type": "object", "title": "Hotel"}, False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "integer"}, False),
    ],
)
def test_a_value_fits_or_does_not(given: dict[str, Any], wanted: dict[str, Any], good: bool):
    assert is_assignable(given, wanted) is good


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "$ref", "anyOf", "required", "title", "format", "a_id"]),
            inner | st.sampled_from(["object", "array", "#/properties", "#/items", "#"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.lists(st.sampled_from(["a_id", "0", "x"]), max_size=3))
def test_a_servers_schema_may_be_anything(schema: Any, path: list[str]):
    schema = schema if isinstance(schema, dict) else {"properties": schema}
    needed_kinds(schema)
    made_kinds(schema)
    part(schema, path)
    assert is_assignable(schema_of(1), schema) in (True, False)


def test_what_an_argument_is_is_said_by_its_form_its_title_or_its_name():
    assert kind("to", {"type": "string", "format": "airport"}) == "airport"
    assert kind("when", {"type": "string", "format": "date"}) == "", "a form of the standard says nothing of what it is"
    assert kind("it", {"type": "object", "title": "FlightPlan"}) == "flight_plan"
