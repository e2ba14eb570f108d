"""The examples in the docstrings of the SDK are run, and there are some."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = {
    "plait.core.tools.context": 2,
    "plait.core.tools.tool": 1,
    "plait.runtime.client.answer": 1,
    "plait.runtime.client.client": 1,
    "plait.runtime.client.sync": 1,
}
"""With how many docstrings that have examples there must be at least."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(name)
    found = [each for each in doctest.DocTestFinder().find(module) if each.examples]
    assert len(found) >= MODULES[name]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL)
    said: list[str] = []
    for each in found:
        runner.run(each, out=said.append)
    assert runner.failures == 0, "".join(said)
