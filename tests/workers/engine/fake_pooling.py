"""An engine of vLLM that pools, without vLLM. What it does with a text stands in the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from plait.core.errors import EngineError


class Numbers(list[float]):
    """Speaks as a tensor does."""

    def float(self) -> Numbers:
        return self

    def tolist(self) -> list[float]:
        return list(self)


class FakeEngine:
    """Its tokens are characters, its number is their count."""

    def __init__(self) -> None:
        self.errored = False
        self.model_config = SimpleNamespace()
        self._dead = asyncio.Event()

    def shutdown(self) -> None:
        self.errored = True
        self._dead.set()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("classify",)

    def get_tokenizer(self) -> Any:
        return lambda text: {"input_ids": [ord(letter) for letter in text]}

    async def encode(self, ids: list[int], params: Any, name: str) -> AsyncIterator[Any]:
        text = "".join(map(chr, ids))
        if text == "long":
            raise ValueError("too long")
        if text == "die":
            self.shutdown()
        if text in ("die", "never"):
            await self._dead.wait()
            raise RuntimeError("EngineCore ended")
        await asyncio.sleep(0)
        data = Numbers([float(len(text))])
        yield SimpleNamespace(outputs=SimpleNamespace(data=data), prompt_token_ids=ids, num_cached_tokens=1)


LOADED: list[FakeEngine] = []
"""Engines, in the order in which they were loaded."""


def load(arguments: dict[str, Any], *, process: Any, is_async: bool) -> tuple[Any, Any]:
    """Return the module and an engine, as `engine_loader.load` does."""
    if arguments["model"] == "no-model":
        raise EngineError("there is no model at no-model: give a folder")
    assert is_async and arguments["runner"] == "pooling"
    LOADED.append(FakeEngine())
    inputs = SimpleNamespace(tokens_input=lambda ids: ids)
    return SimpleNamespace(inputs=inputs, PoolingParams=SimpleNamespace), LOADED[-1]
