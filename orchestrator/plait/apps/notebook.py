"""In a notebook: a run that is shown while its cell runs, and several ways of asking compared.

answer = await watched(plait.stream("Why?", planner="sample:n=5"))     # with an AsyncOrchestrator
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from ..core.errors import UsageError
from ..core.record import StepRecord, steps_table
from ..runtime.client.answer import Answer, RunEnded, RunEvent, StepEvent
from .commands.eval import Comparison, compared

_PAUSE = 0.2
"""Seconds between two pictures."""


async def watched(news: AsyncIterator[RunEvent]) -> Answer:
    """Show the steps of a run while it runs, and return its answer, which a cell's last line shows. Outside a notebook
    it shows nothing."""
    shown = _Display()
    records: dict[str, StepRecord] = {}
    drawn = 0.0
    async for item in news:
        if isinstance(item, RunEnded):
            shown.draw(f"<p>{item.answer.status} after {item.answer.seconds:.1f} s</p>")  # the answer shows itself
            return item.answer
        if isinstance(item, StepEvent):
            records[item.record.step] = item.record
            if (now := time.monotonic()) - drawn >= _PAUSE:
                drawn = now
                ended = sum(record.ended for record in records.values())
                shown.draw(f"<p>{ended} of {len(records)} steps have ended</p>{steps_table(list(records.values()))}")
    raise UsageError("the news ended without an answer: give what `stream` returns")


def comparison(answers: Mapping[str, Iterable[tuple[Answer, bool]]]) -> Comparison:
    """Compare ways of asking: `answers` maps each one's name to its answers, each with whether it is right, to the same
    questions in the same order.

    Raises `UsageError` if they have no question in common.
    """
    runs: dict[str, list[dict[str, Any]]] = {
        name: [
            {"text": str(place), "solved": right, "total_tokens": answer.total_tokens, "seconds": answer.seconds,
             "critical_path_tokens": answer.critical_path_tokens, "cost": answer.usage.cost}
            for place, (answer, right) in enumerate(given)
        ]
        for name, given in answers.items()
    }  # fmt: skip
    return compared(runs)


class _Display:
    """One output of a cell that is redrawn; without a notebook it shows nothing."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._library: Any = None
        with contextlib.suppress(ImportError):
            library = importlib.import_module("IPython")
            if getattr(library.get_ipython(), "kernel", None) is not None:
                self._library = library.display

    def draw(self, html: str) -> None:
        """Replace the displayed HTML."""
        if self._library is None:
            return
        page = self._library.HTML(html)
        if self._handle is None:
            self._handle = self._library.display(page, display_id=True)
        else:
            self._handle.update(page)
