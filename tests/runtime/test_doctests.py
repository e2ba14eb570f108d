"""The examples in docstrings are run, in every module that has some."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from scripts.checkout import ROOTS, SIDE

_EXAMPLE = re.compile(r"^ *+>>> ", re.MULTILINE)


def modules() -> list[str]:
    """Return the modules of the package with examples in their text."""
    found: list[str] = []
    for root in (Path(__file__).parents[2] / name for name in (*ROOTS, *SIDE)):
        for path in root.glob("plait*/**/*.py"):
            if _EXAMPLE.search(path.read_text("utf-8")):
                found.append(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
    return sorted(found)


def test_the_sdk_has_examples() -> None:
    assert {"plait.runtime.client.client", "plait.runtime.client.sync", "plait.core.tools.tool"} <= set(modules())


@pytest.mark.parametrize("name", modules())
def test_examples_hold(name: str) -> None:
    found = [each for each in doctest.DocTestFinder().find(importlib.import_module(name)) if each.examples]
    assert found, "the examples are not in a docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL)
    said: list[str] = []
    for each in found:
        runner.run(each, out=said.append)
    assert runner.failures == 0, "".join(said)
