"""The worker of the how-to (examples/own_worker.py) keeps what a worker owes its driver."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from plait.core import ModelCall
from plait.core.interfaces import Worker

from .worker_contract import WorkerContract

PROGRAM = """
import sys, time
prompt = sys.stdin.read()
if prompt == "fail":
    sys.exit(3)
for number in range(2000 if prompt == "endless" else 5):
    print(number, end=" ", flush=True)
    time.sleep(0.01)
"""


def _example() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "examples" / "own_worker.py"
    spec = importlib.util.spec_from_file_location("own_worker", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestOwnWorker(WorkerContract):
    def make(self) -> Worker:
        return _example().Program((sys.executable, "-c", PROGRAM))

    @pytest.fixture
    async def worker(self) -> AsyncIterator[Worker]:
        made = self.make()
        await made.start()
        yield made
        await made.close()

    def short(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="short", stream=stream)  # pyright: ignore[reportArgumentType]

    def endless(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="endless", stream=stream)  # pyright: ignore[reportArgumentType]

    def failing(self) -> ModelCall:
        return ModelCall(prompt="fail")  # pyright: ignore[reportArgumentType]
