"""What is taken for JSON stays the object that it is; what is not quite JSON is made anew."""

from __future__ import annotations

from typing import Any

from plait.core.values import json_value


def test_what_is_json_already_is_not_copied() -> None:
    value: Any = {"a": [1, {"b": None}]}
    assert json_value(value) is value
