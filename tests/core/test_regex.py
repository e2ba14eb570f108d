"""Expressions and schemas that are data: the right matches, in bounded time, else refused in words."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from hypothesis import given, strategies as st

from plait.core.json_schema import check_schema, faults
from plait.core.regex import expression

CPU = 1.0
"""Seconds of processor time: what is exponential never ends, what is bounded takes a tenth."""

PIECES = st.sampled_from(
    ["a", "b", "[ab]", "é", ".", "(a)", "(?:b|ab)", "a+", "b*", "a{1,3}", "(?P<answer>[ab]+)", "#", "^"]
)
TEXTS = st.text(alphabet="ab#é\n ", max_size=1500)


@given(st.lists(PIECES, min_size=1, max_size=5).map("".join).filter(lambda p: p.count("answer") < 2), TEXTS)
def test_matches_are_those_of_the_standard_library(pattern, text):
    ours, theirs = expression(pattern), re.compile(pattern)
    first = theirs.search(text)
    found = ours.search(text)
    assert (found and (found.text, tuple(found.groups), found.named)) == (
        first and (first[0], first.groups(), first.groupdict())
    )
    whole = theirs.fullmatch(text)
    assert (ours.fullmatch(text) is None) == (whole is None)
    if "^" not in pattern and theirs.search("") is None:
        assert [each.text for each in ours.finditer(text)] == [each[0] for each in theirs.finditer(text)]


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|a)+$", "(a|aa)+$", "(.*a){20}$", "a.*z|a", "(a|b)*a(a|b){300}c|a", "(x+x+)+y", ".{800}z", ""],
)
@pytest.mark.parametrize("text", ["a" * 1_000_000 + "!", "abbab" * 200_000, "x" * 1_000_000])
def test_no_expression_takes_long(pattern, text):
    began = time.process_time()
    made = expression(pattern)
    made.search(text)
    made.fullmatch(text)
    for _ in made.finditer(text):
        pass
    assert time.process_time() - began < CPU


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "(", "a{9999}", "((a{100}){100}){100}", "a" * 5000, "\ud83d", "*"]
)
def test_what_cannot_run_so_is_refused_in_words(pattern):
    with pytest.raises(ValueError, match="regular expression"):
        expression(pattern)


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_patterns_of_schemas():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    check_schema(schema)
    assert not faults(schema, {"name": "ann", "x-a": 1})
    assert {each.json_path for each in faults(schema, {"name": "Ann", "x-a": "1", "y": 2}, 9)} == {
        "$",
        "$.name",
        "$['x-a']",
    }
    assert faults({"additionalProperties": {"type": "string"}}, {"a": 1})
    assert faults({"uniqueItems": True}, [1, {"a": [1]}, {"a": [1.0]}])
    assert not faults({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, {"a": 2}])


def doubled(levels: int) -> dict:
    """A schema that looks at one value 2^levels times."""
    defs: dict = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        defs[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}, {"$ref": f"#/$defs/d{level - 1}"}]}
    return {"$defs": defs, "type": "object", "properties": {"x": {"$ref": f"#/$defs/d{levels}"}}}


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}}, {"x": "a" * 100_000 + "!"}),
        ({"type": "object", "patternProperties": {"^(a+)+$": False}}, {"a" * 100_000 + "!": 1}),
        (
            {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
            {"a" * 1000 + "!": 1},
        ),
        (doubled(40), {"x": 1}),
        ({"type": "object", "properties": {"x": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}, nested(40)),
        ({"uniqueItems": True}, [{"a": n, "b": [n]} for n in range(20_000)]),
        ({"allOf": [{"$ref": "#"}]}, 1),
        ({"enum": [{"a": n} for n in range(100_000)]}, {"a": -1}),
        ({"patternProperties": {f"^a{n}$": {} for n in range(1000)}}, {f"b{n}": 1 for n in range(1000)}),
    ],
    ids=range(9),
)
def test_no_schema_takes_long(schema, value):
    began = time.process_time()
    with contextlib.suppress(ValueError):
        check_schema(schema)
        faults(schema, value)
    assert time.process_time() - began < 2 * CPU


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": 3}, "no JSON schema"),
        ({"type": "object", "properties": {"x": {"$ref": "https://example.org/x.json"}}}, "not in it"),
        ({"$ref": "#/$defs/nope"}, "not in it"),
        ({"type": "string", "pattern": "(?=a)"}, "regular expression"),
        ({"type": "object", "patternProperties": {r"(a)\1": {}}}, "regular expression"),
    ],
)
def test_schemas_that_are_refused(schema, said):
    with pytest.raises(ValueError, match=said):
        check_schema(schema)


def test_schemas_that_refer_to_themselves_are_fine():
    tree = {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
    }
    check_schema(tree)
    assert not faults(tree, {"next": {"next": {}}})
    assert faults(tree, {"next": {"next": 3}})
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "integer"}},
              "properties": {"x": {"$ref": "#/definitions/a"}}}  # fmt: skip
    check_schema(draft7)
    assert faults(draft7, {"x": "1"})


@pytest.mark.parametrize("pattern", ["", "a*", "(a|a)*$", "$", r"\b", "é*"])
@pytest.mark.parametrize("text", ["", "a", "baac", "é", "a é😀a"])
def test_empty_matches_are_found_once_each(pattern: str, text: str) -> None:
    """One at the end was found again, until there were 20,000."""
    found = [each.text for each in expression(pattern).finditer(text)]
    assert found == [each[0] for each in re.finditer(pattern, text, re.ASCII)]


def test_named_groups_are_found_by_their_names():
    match = expression(r"(\d+) (?P<unit>\w+) (?P<rest>.*)").search("12 km to go")
    assert match is not None
    assert (match.groups, match.named) == (["12", "km", "to go"], {"unit": "km", "rest": "to go"})


def test_a_refusal_says_what_is_wrong_with_the_expression():
    with pytest.raises(ValueError, match=r"missing \)"):
        expression("(a")
