"""Skips what needs a library of an engine that is not installed, so that `EXTRA=none make test` runs all the rest.

Only a `ModuleNotFoundError` for one of these libraries counts, and only where Python really cannot find it. The
workflow `engines.yml` runs what is skipped here.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Generator

import pytest

__all__ = ["pytest_make_collect_report"]

ENGINE_LIBRARIES = ("ray", "safetensors", "torch", "transformers", "vllm")
_MISSING = tuple(name for name in ENGINE_LIBRARIES if importlib.util.find_spec(name) is None)
_CAUSE = re.compile(
    r"ModuleNotFoundError: No module named '(\w+)|ImportError: cannot import name '\w+' from '([\w.]+)'"
)
_skipped: set[str] = set()
"""Test modules that were skipped. Another test file that imports names from one of them is skipped, too."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report a file that cannot be imported without an engine's library as skipped."""
    report = yield
    if report.failed and (found := _CAUSE.search(str(report.longrepr))):
        library, module = found.groups()
        if library in _MISSING or module in _skipped:
            _skipped.add(".".join(collector.path.relative_to(collector.config.rootpath).with_suffix("").parts))
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {library or module} is not there")
    return report
