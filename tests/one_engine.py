"""A process has one engine, and the tests' process is one: whose it is, is settled here for all tests.

Most tests share an engine that stays open (the fixture `engine` of tests/workers). A test that starts one itself, by
hand or through an orchestrator with the worker `engine`, is marked `own_engine`. Such tests run before the shared
engine is opened, and close theirs. One that is not marked fails whenever it starts an engine, also where nothing
stands in its way that day.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from plait.workers.engine import Engine

UNMARKED = (
    "this test starts an engine in the process of the tests, which may have one already: mark it with "
    "pytest.mark.own_engine (and pytest.mark.engine), or use the fixture `engine`"
)
LEFT = (
    "a test marked `own_engine` has left its engine open: close it at the end of the test, or of its module's fixture"
)


class Place:
    """The lock that the engine of a process holds; in the tests' process only those may have it who said so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.allowed = False
        self.refused = False

    def acquire(self, blocking: bool = True) -> bool:
        """Take the place, if this test may and it is free."""
        if not self.allowed:
            self.refused = True  # the error may be caught, and taken for what an engine says
            raise RuntimeError(UNMARKED)
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Leave it."""
        self._lock.release()

    def locked(self) -> bool:
        """Whether there is an engine."""
        return self._lock.locked()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Allow whoever starts an engine meanwhile."""
        before, self.allowed = self.allowed, True
        try:
            yield
        finally:
            self.allowed = before


PLACE = Place()


@contextlib.asynccontextmanager
async def opened(model: object, **options: Any) -> AsyncIterator[Engine]:
    """A small engine, closed at the end."""
    from plait.workers.engine import Engine

    small = {"slots": 4, "threads": 1, "kv_cache_memory_bytes": 32 << 20}
    engine = Engine(str(model), **small | options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.hookimpl(trylast=True)  # after pytest has put those side by side that share a fixture
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests go first that start an engine of their own."""
    for item in items:
        if item.get_closest_marker("own_engine") and not item.get_closest_marker("engine"):
            raise pytest.UsageError(f"{item.nodeid}: a test that is marked `own_engine` is marked `engine` too")
    items.sort(key=lambda item: item.get_closest_marker("own_engine") is None)


def pytest_collection_finish() -> None:
    """Put the place where engines look for it."""
    from plait.workers.engine.vllm import Core

    Core._place = PLACE  # pyright: ignore[reportAttributeAccessIssue]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Allow an engine while a test that is marked is set up, runs and is torn down."""
    PLACE.allowed, PLACE.refused = item.get_closest_marker("own_engine") is not None, False
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Fail a test that took an engine unasked, and one that keeps what others need."""
    yield
    if PLACE.refused:
        pytest.fail(UNMARKED, pytrace=False)
    module = item.getparent(pytest.Module)
    goes_on = nextitem is not None and nextitem.getparent(pytest.Module) is module
    if item.get_closest_marker("own_engine") and not goes_on and PLACE.locked():
        pytest.fail(LEFT, pytrace=False)
