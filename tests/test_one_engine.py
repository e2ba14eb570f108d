"""An engine that a test starts unasked fails it, though nothing was in its way; one that asked closes its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .one_engine import LEFT, PLACE, UNMARKED

pytest_plugins = ["pytester"]

INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers =\n    engine\n    own_engine\n"
TESTS = """
import pytest
from tests.one_engine import PLACE

@pytest.mark.engine
def test_unasked():
    with pytest.raises(Exception):
        PLACE.acquire(blocking=False)

@pytest.mark.engine
@pytest.mark.own_engine
def test_own():
    assert PLACE.acquire(blocking=False)
    {end}
"""


@pytest.fixture(autouse=True)
def _place(pytester: pytest.Pytester) -> Iterator[None]:
    """The tests in the test share this process, and leave its place as it was."""
    pytester.makeini(INI)
    allowed = PLACE.allowed
    yield
    PLACE.allowed, PLACE.refused = allowed, False
    if PLACE.locked():
        PLACE.release()


@pytest.mark.parametrize(("end", "errors", "said"), [("PLACE.release()", 1, UNMARKED), ("pass", 2, LEFT)])
def test_who_may_start_an_engine(pytester: pytest.Pytester, end: str, errors: int, said: str) -> None:
    pytester.makepyfile(TESTS.replace("{end}", end), test_next="def test_next(): pass")
    done = pytester.runpytest_inprocess("-p", "tests.one_engine", "-v")
    done.assert_outcomes(passed=3, errors=errors)
    done.stdout.fnmatch_lines([f"*{said}*"])
    assert done.stdout.str().index("test_own") < done.stdout.str().index("test_unasked"), "those of their own go first"


def test_a_test_of_an_own_engine_is_one_of_the_engines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.own_engine\ndef test_one(): pass")
    done = pytester.runpytest_inprocess("-p", "tests.one_engine")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*test_one: a test that is marked `own_engine` is marked `engine` too"])
