"""Fixtures for tests of programs that use plait: a model that answers from a script, and a recorded one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ..core.interfaces import Worker
from ..runtime.driver.result_cache import CachingWorker, ResultCache
from ..runtime.driver.worker_proxy import WorkerProxy
from ..runtime.plugins.loader import Plugins

RECORD = "--plait-record"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records."""
    parser.getgroup("plait").addoption(RECORD, action="store_true", help="Record the answers of `recorded_model`.")


@pytest.fixture
def scripted_model() -> Callable[..., Worker]:
    """Return a function that makes a worker of replies: texts, or the fields of `plait.workers.scripted.Reply`.

    def test_vote(scripted_model):
        model = scripted_model({"when": "2 [+] 2", "text": "4"}, "I do not know")
        assert plait.run("2 + 2?", workers=[model], journal="off").answer == "4"
    """

    def make(*replies: str | Mapping[str, Any]) -> Worker:
        fields = [{"text": reply} if isinstance(reply, str) else reply for reply in replies]
        return Plugins().worker("scripted", replies=fields)

    return make


@pytest.fixture
def recorded_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., Worker]]:
    """Return a function that makes a worker of recorded answers. It takes a function that makes the real worker, which
    answers only with `--plait-record`, and the file, by default `recorded/TEST.sqlite` beside the test's.

    def test_agent(recorded_model):
        model = recorded_model(lambda: Http(base_url="http://localhost:8000/v1"))
    """
    caches: list[ResultCache] = []

    def make(live: Callable[[], Worker], path: Path | None = None) -> Worker:
        file = path or request.path.parent / "recorded" / f"{request.node.name}.sqlite"
        is_recording = request.config.getoption(RECORD)
        if is_recording:
            file.unlink(missing_ok=True)
        elif not file.exists():
            pytest.fail(f"{file} does not exist. Record it: pytest {RECORD}")
        caches.append(ResultCache(file))
        missing = {"text": f"this call was not recorded. Record it: pytest {RECORD}", "finish": "error"}
        inner = live() if is_recording else Plugins().worker("scripted", replies=[missing])
        return CachingWorker(_Recording(inner), caches[-1], "")

    yield make
    for cache in caches:
        cache.close()


class _Recording(WorkerProxy):
    """A worker whose answers are found again whatever its address and key are."""

    tenant = ""

    def look(self) -> None:
        """Copy the inner worker's offer, without its identity."""
        super().look()
        self.identity = ""
