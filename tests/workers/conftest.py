"""One engine for all tests of this folder: a Llama of random weights, made anew, so that no model need be there; and
an end for threads that a test leaves hanging."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from plait.workers.engine import Engine
from tests.one_engine import PLACE

from .vllm_server import SERVER_DTYPE


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the random model."""
    from .tiny_model import build  # needs torch, and most tests of this folder do not

    return build(tmp_path_factory.mktemp("models") / "tiny")


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["shared", "own"])
async def engine(tiny_model: Path, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """A running engine with that model, its EngineCore in this process and in its own; its tests run on the session's
    loop."""
    small: dict[str, Any] = {"slots": 16, "kv_cache_memory_bytes": 32 << 20, "threads": 1, "dtype": SERVER_DTYPE}
    engine = Engine(str(tiny_model), process=request.param, **small)
    with PLACE.lent():
        await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def blocker() -> AsyncIterator[threading.Event]:
    """Let every thread that a test left hanging go when the test is over."""
    event = threading.Event()
    yield event
    event.set()
