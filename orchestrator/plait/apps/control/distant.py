"""A run of another process, seen and steered through the store that both share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from pydantic import JsonValue

from ...core.record import StepRecord
from ...core.tools.context import OPERATOR, Answerer, Question
from ...runtime.client.client import read_answer
from ...runtime.control.verbs import step_row
from ...runtime.journal import store
from ...runtime.journal.directory import RunEntry, entries, find
from ...runtime.journal.inbox import leave, pending
from ...runtime.journal.location import Database
from ...runtime.journal.resume import Rebuilder
from ...runtime.plugins.loader import Plugins
from ...runtime.runlog import RunRecord

_OFTEN = 0.5
"""Least seconds between two looks at a run that is followed."""
_PATIENT = 4.0
"""Times as long as a look takes: a large run is looked at less often."""


def under_way(database: Database) -> list[dict[str, Any]]:
    """Return a row for each run of a store that has not ended, the newest first."""
    return [_row(entry) for entry in entries(database) if entry.status in ("running", "interrupted")]


def _row(entry: RunEntry) -> dict[str, Any]:
    return {
        "run": entry.run,
        "status": entry.status,
        "text": entry.text,
        "planner": entry.planner,
        "created": entry.created.isoformat(),
        "tokens": entry.tokens,
    }


class Distant:
    """One run of a store. Its steps are read from its journal: events since the last batch are missing, and text of
    running steps comes about once a second."""

    def __init__(self, database: Database, entry: RunEntry) -> None:
        self._database, self.entry = database, entry
        self._rebuilder: Rebuilder | None = None

    @classmethod
    def find(cls, database: Database, run: str) -> Distant:
        """Return the run with this id, or the only one whose id begins so. Raises `UsageError`."""
        return cls(database, find(database, run))

    def _look(self) -> RunRecord:
        self.entry = find(self._database, self.entry.run)
        rebuilder = self._rebuilder
        if rebuilder is None or rebuilder.path != self.entry.path:  # a process that took it over writes elsewhere
            rebuilder = self._rebuilder = Rebuilder(self.entry.path, self.entry.run, Plugins())
        return rebuilder.look().record

    def show(self) -> dict[str, Any]:
        """Return the run with all of its steps."""
        run = self._look()
        steps, account = run.steps, run.records.account if run.records is not None else None
        states = [step.state for step in steps]
        return {
            **_row(self.entry),
            "tokens": sum(step.tokens for step in steps),
            "seconds": round(run.seconds, 3),
            "done": states.count("done"),
            "running": states.count("running"),
            "budget": (account.budget if account else run.request.budget).model_dump(exclude_none=True),
            "questions": [question.model_dump(mode="json") for question in self.questions],
            "steps": [step_row(step) for step in steps],
        }

    def _news(self) -> Iterator[tuple[list[dict[str, Any]], float]]:
        """Yield, at each look, the steps that have moved since the last, and the answer at the end; and the seconds
        until the next look."""
        seen: dict[str, dict[str, Any]] = {}
        while True:
            began = time.monotonic()
            run = self._look()
            rows: list[dict[str, Any]] = []
            for step in run.steps:
                row = step_row(step)
                if seen.get(step.step) != row:
                    seen[step.step] = row
                    rows.append({"kind": "step", "at": round(step.moves[-1][0], 6) if step.moves else 0.0, **row})
            if run.finish is not None:
                answer = read_answer(run, Plugins().task(run.request.task, run.request.text))
                yield [*rows, {"kind": "answer", "at": round(run.seconds, 6), **answer.summary()}], 0.0
                return
            yield rows, max(_OFTEN, _PATIENT * (time.monotonic() - began))

    def follow(self) -> Iterator[dict[str, Any]]:
        """Yield the news of the run, to its end."""
        for rows, pause in self._news():
            yield from rows
            time.sleep(pause)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the news of the run, to its end, beside an event loop."""
        looks = self._news()
        while (look := await asyncio.to_thread(next, looks, None)) is not None:
            for row in look[0]:
                yield row
            await asyncio.sleep(look[1])

    # -- the methods of a `Handle` for the table of verbs: they send commands to the run's process through the store ---

    @property
    def run(self) -> str:
        """The run's id."""
        return self.entry.run

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """All steps so far."""
        return self._look().steps

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions."""
        return tuple(question for entry, question in pending(self._database) if entry.run == self.entry.run)

    def cancel(self, reason: str) -> None:
        """Cancel the run. Raises `UsageError`, as all of these methods do, for a run that is not running."""
        store.order(self._database, self.run, "cancel", "", reason)

    def prune(self, step: str, reason: str) -> None:
        """Ask for the cancellation of a step."""
        store.order(self._database, self.run, "prune", step, reason)

    def pause(self) -> None:
        """Have nothing more started."""
        store.order(self._database, self.run, "pause")

    def resume(self) -> None:
        """Have steps started again."""
        store.order(self._database, self.run, "resume")

    def answer(self, question: str, value: JsonValue, by: Answerer = OPERATOR) -> None:
        """Answer an open question. Raises `Unanswered` for an answer outside its choices, `NotAllowed` for a person who
        may not answer it."""
        leave(self._database, question, value, by)

    def limit(self, **limits: float | str | None) -> None:
        """Have limits of the run's budget changed."""
        for name, value in limits.items():
            store.order(self._database, self.run, "set", name, "none" if value is None else str(value))
