"""What values weigh, and what a plan comes to by its graph."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from plait.core.interfaces import Merge
from plait.core.plan import Plan
from plait.core.request import Retries
from plait.core.value_sizes import ValueSize, cost_of, measure_value
from plait.core.values import DEEPEST, Same, json_value
from plait.runtime.plugins.loader import Plugins

MOST = 1 << 30
MERGE_CLASS = Plugins().merge_class
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_a_value_weighs_no_less_than_its_json_in_utf_8(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert measure_value(value, {}, MOST).bytes * 2 >= len(written)


@pytest.mark.parametrize(
    "value", [{"\u20ac" * 1000: 1}, {"\U0001f600" * 1000: []}, ["\u20ac" * 1000], 10**4000], ids=type
)
def test_names_and_numbers_weigh_what_they_take(value: Any) -> None:
    """A name weighed a quarter of a text's weight, and every number the same."""
    size = value.bit_length() // 8 if isinstance(value, int) else len(json.dumps(value, ensure_ascii=False).encode())
    assert measure_value(value, {}, MOST).bytes >= size


@given(VALUES, VALUES)
def test_what_is_known_is_not_looked_into_and_counts_the_same(one: Any, two: Any) -> None:
    known = {Same(each): measure_value(each, {}, MOST) for each in (one, two) if isinstance(each, list | dict)}
    whole: Any = [one, {"a": two}, one]
    assert measure_value(whole, known, MOST) == measure_value(whole, {}, MOST)


def test_counting_stops_where_it_is_too_much() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value, value]  # 2 to the 60
    began = time.process_time()
    assert measure_value(value, {}, 10_000).bytes > 10_000
    assert time.process_time() - began < 0.5


def test_levels_count_through_what_is_known() -> None:
    inner: Any = "x"
    for _ in range(DEEPEST - 1):
        inner = [inner]
    known = {Same(inner): DEEPEST - 1}
    whole: Any = [inner]
    assert json_value(whole, known=known) is whole
    with pytest.raises(ValueError, match="deeper"):
        json_value([whole], known=known)


def plan(*steps: dict[str, Any]) -> Plan:
    return Plan.model_validate({"steps": list(steps), "output": steps[-1]["name"]})


def doubling(levels: int) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"name": "s0", "op": {"kind": "think", "prompt": "x"}}]
    for level in range(1, levels + 1):
        steps += [
            {"name": f"c{level}", "needs": [f"s{level - 1}"], "op": {"kind": "join"}},
            {"name": f"s{level}", "needs": [f"s{level - 1}", f"c{level}"], "op": {"kind": "join"}},
        ]
    return steps


def test_a_plan_that_doubles_its_values_is_known_by_its_graph() -> None:
    small, large = (cost_of(plan(*doubling(levels)), Retries(), MOST, MERGE_CLASS).bytes for levels in (10, 11))
    assert 1.9 < large / small < 2.1
    assert cost_of(plan(*doubling(4_000)), Retries(), 1000, MERGE_CLASS).bytes == 1001


def test_a_value_that_a_prompt_names_often_counts_as_often() -> None:
    refs = [{"kind": "ref", "step": "a"}] * 50
    asks = plan({"name": "a", "op": {"kind": "think", "prompt": "x"}},
                {"name": "b", "needs": ["a"], "op": {"kind": "think", "prompt": refs}})  # fmt: skip
    assert cost_of(asks, Retries(), MOST, MERGE_CLASS).bytes == 50 * 64


def test_the_most_tokens_are_those_of_all_tries_unless_steps_plan_more() -> None:
    think = {"kind": "think", "prompt": "x", "sampling": {"max_tokens": 10}, "thinking": "off"}
    assert cost_of(plan({"name": "a", "op": think}), Retries(think=0, lost=0), MOST, MERGE_CLASS).tokens == 20
    assert cost_of(plan({"name": "a", "op": think, "expands": True}), Retries(), MOST, MERGE_CLASS).tokens is None
    judged = {"kind": "join", "merge": {"name": "judged"}}
    assert cost_of(plan({"name": "a", "op": think}, {"name": "j", "needs": ["a"], "op": judged}),
                   Retries(), MOST, MERGE_CLASS).tokens is None  # fmt: skip


def test_any_merge_may_declare_that_it_plans_no_more_and_that_it_collects() -> None:
    class Plain(Merge):
        plans_more = False
        collects = True

    steps = [{"name": name, "op": {"kind": "think", "prompt": "x", "sampling": {"max_tokens": 10}}} for name in "ab"]
    joined = plan(*steps, {"name": "j", "needs": ["a", "b"], "op": {"kind": "join", "merge": {"name": "theirs"}}},
                  {"name": "k", "needs": ["j"], "op": {"kind": "join"}})  # fmt: skip
    plain = cost_of(joined, Retries(), MOST, lambda name: Plain if name == "theirs" else MERGE_CLASS(name))
    other = cost_of(joined, Retries(), MOST, lambda name: Merge if name == "theirs" else MERGE_CLASS(name))
    assert plain.tokens is not None and other.tokens is None
    assert plain.bytes > other.bytes


def test_weights_add_up() -> None:
    assert measure_value({"a": [1, "é"]}, {}, MOST) == ValueSize(64 + 8 + 65 + 64 + 16 + 32 + 64 + 4, 2)


def test_what_comes_later_in_a_plan_counts_nothing_yet() -> None:
    refs = [{"kind": "ref", "step": "a"}] * 50
    asks = Plan.model_validate({
        "steps": [{"name": "b", "needs": ["a"], "op": {"kind": "think", "prompt": refs}},
                  {"name": "a", "op": {"kind": "think", "prompt": "x"}}],
        "output": "b",
    })  # fmt: skip
    assert cost_of(asks, Retries(), MOST, MERGE_CLASS).bytes == 0
