"""What is taken for JSON stays the object that it is; what is not quite JSON is made anew."""

from __future__ import annotations

from typing import Any

from plait.core.values import json_value


def test_what_is_json_already_is_not_copied() -> None:
    value: Any = {"a": [1, {"b": None}]}
    assert json_value(value) is value


def test_what_is_almost_json_is_made_anew() -> None:
    value: Any = {"pair": (1, 2), "text": "x"}
    made = json_value(value)
    assert made == {"pair": [1, 2], "text": "x"} and isinstance(value["pair"], tuple)
