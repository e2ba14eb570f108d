"""Which tests execute a line: the tests of a folder run once under coverage, and what they executed is kept.

    python -m pytest -p scripts.covered --covered FOLDER tests/machine  # writes FOLDER/tests-machine.*
    python -m pytest -p scripts.covered --chosen FILE  # runs the tests that FILE names

It is a plugin of pytest, and what `scripts.mutants` asks for the tests of a changed line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("orchestrator", "planners", "policies")
PATIENCE = 5
"""A test that takes this many times as long as it did has hung."""
LEAST_SECONDS = 10.0
"""What every test may take: a test of milliseconds may wait for a busy machine."""


class Recorder:
    """Runs tests with coverage, and keeps per test the lines that it executed and its seconds, if it passed."""

    def __init__(self, folder: Path, tests: str) -> None:
        self._name = folder / tests.strip("/").replace("/", "-")
        self._coverage = Coverage(data_file=f"{self._name}.coverage", source=[str(ROOT / source) for source in SOURCES])
        self._coverage.set_option("run:relative_files", True)  # what was found in one checkout holds in its copies
        self._seconds: dict[str, float] = {}
        self._coverage.erase()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Name the test that runs."""
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long it took, with what it needs set up; what fails without a mutant can tell nothing of one."""
        seconds = self._seconds.get(report.nodeid, 0.0)
        self._seconds[report.nodeid] = seconds + report.duration if report.passed else float("inf")

    def pytest_sessionfinish(self) -> None:
        """Write both down."""
        self._coverage.stop()
        self._coverage.save()
        passed = {test: seconds for test, seconds in self._seconds.items() if seconds != float("inf")}
        Path(f"{self._name}.seconds").write_text(json.dumps(passed), encoding="utf-8")


class Chosen:
    """Runs the tests of a list in its order, each with a limit of time."""

    def __init__(self, limits: dict[str, float]) -> None:
        self._limits = limits
        self._place = {test: place for place, test in enumerate(limits)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave what was not chosen."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )
        for item in items:
            item.add_marker(pytest.mark.timeout(self._limits[item.nodeid]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    parser.addoption("--covered", help="a folder for what the tests execute")
    parser.addoption("--chosen", help="a file of JSON: tests, with the seconds that each may take")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Begin before any module of plait is imported."""
    options: Any = early_config.known_args_namespace
    if options.covered:
        early_config.pluginmanager.register(Recorder(Path(options.covered), options.file_or_dir[0]))
    if options.chosen:
        early_config.pluginmanager.register(Chosen(json.loads(Path(options.chosen).read_text(encoding="utf-8"))))


class Test(NamedTuple):
    """A test, and how many seconds it took."""

    seconds: float
    name: str


class Covered:
    """What the tests of some folders execute."""

    def __init__(self, folder: Path) -> None:
        self._data = [CoverageData(str(path)) for path in sorted(folder.glob("*.coverage"))]
        self._seconds: dict[str, float] = {}
        for path in folder.glob("*.seconds"):
            self._seconds |= json.loads(path.read_text(encoding="utf-8"))
        for data in self._data:
            data.read()

    def tests(self, path: str, lines: frozenset[int] | None) -> list[Test]:
        """Return the tests that execute one of these lines of a file, the quickest first.

        What stands outside functions runs when a module is imported, which one test does for all: for such lines
        (`None`) every test counts that executes anything of the file.
        """
        names: set[str] = set()
        for data in self._data:
            for line, tests in data.contexts_by_lineno(path).items():
                if lines is None or line in lines:
                    names.update(tests)
        return sorted(Test(self._seconds[name], name) for name in names if name in self._seconds)


def limits(tests: list[Test]) -> dict[str, float]:
    """Return each test's time limit, in seconds."""
    return {test.name: max(LEAST_SECONDS, PATIENCE * test.seconds) for test in tests}


def files(tests: list[Test]) -> list[str]:
    """Return the files in which tests stand."""
    return list(dict.fromkeys(test.name.partition("::")[0] for test in tests))
