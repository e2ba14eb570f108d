"""Calls in what a model writes that is nested deeper than Python reads at ease."""

from __future__ import annotations

import pytest

from plait.core.tools.calls import loads, read_calls_in
from plait.core.tools.turns import read_calls
from plait.planners.tools.llmcompiler.tool_calls import NativeCalls


@pytest.mark.parametrize("deep", [150, 980, 985, 5000])
def test_calls_nested_too_deep_are_none(deep: int) -> None:
    nest = "[" * deep + "]" * deep
    for text in (nest, f'<tool_call>{{"name": "a", "arguments": {{"x": {nest}}}}}</tool_call>'):
        native = NativeCalls()
        native.feed(text)
        native.close()
        assert native.count == 0
        assert not any(each.id for each in read_calls(text, "native", 1, ()))
    assert not list(read_calls_in(loads(nest)))
    assert [each.name for each in read_calls_in(loads('[[{"name": "a", "arguments": {}}]]'))] == ["a"]
