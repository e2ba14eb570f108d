"""What workers have in common that answer think steps in this process: of studies, and of tests of planners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from plait.core.interfaces import Worker
from plait.core.ops import ModelCall, Text

__all__ = ["InProcess", "text_of"]


class InProcess(Worker):
    """A worker that has nothing to load, and is well until it is closed. A subclass says how it answers (`run`)."""

    serves = ("think",)
    slots = 64

    async def start(self) -> None:
        """Be there."""
        self._closed = asyncio.Event()

    async def cancel(self, attempt: int) -> None:
        """What is begun is written to its end."""

    async def health(self) -> AsyncIterator[bool]:
        """Be well until it is closed."""
        if not self._closed.is_set():
            yield True
            await self._closed.wait()

    async def close(self) -> None:
        """Free nothing."""
        self._closed.set()


def text_of(think: ModelCall) -> str:
    """Return all that a call shows the model, up to where the model continues."""
    return "".join(part.text for part in think.parts if isinstance(part, Text)) + think.begin
