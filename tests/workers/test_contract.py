"""The workers of model steps that live in this process, against what every worker owes."""

from __future__ import annotations

import pytest

from plait.core import ModelCall, Sampling, ToolCall
from plait.core.result import Failure
from plait.workers.engine import Engine
from plait.workers.scripted import Reply, Scripted

from .worker_contract import WorkerContract, items_of, job_of


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="session")
class TestEngine(WorkerContract):
    warm = 0.1

    @pytest.fixture
    def worker(self, engine: Engine) -> Engine:
        return engine

    def make(self) -> Engine:
        return Engine("a/model")

    def short(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="w1 w2 w3", stream=stream, sampling=Sampling(max_tokens=10))

    def endless(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="w1 w2 w3", stream=stream, sampling=Sampling(max_tokens=500))

    def failing(self) -> ModelCall:
        return ModelCall(prompt="w1", sampling=Sampling(temperature=1000.0))

    async def test_other_kinds_of_steps_fail(self, engine: Engine) -> None:
        (end,) = await items_of(engine, job_of(ToolCall(tool="clock")))
        assert isinstance(end, Failure) and end.kind == "EngineError" and "call" in end.message


class TestScripted(WorkerContract):
    @pytest.fixture
    def worker(self) -> Scripted:
        return self.make()

    def make(self) -> Scripted:
        return Scripted(
            [
                Reply(when="endless", text="word " * 10_000, tokens_per_second=100),
                Reply(when="fails", text="some words", finish="error"),
                Reply(text="one two three"),
            ]
        )

    def short(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="short", stream=stream)

    def endless(self, stream: bool = False) -> ModelCall:
        return ModelCall(prompt="endless", stream=stream, sampling=Sampling(max_tokens=10_000))

    def failing(self) -> ModelCall:
        return ModelCall(prompt="fails")
