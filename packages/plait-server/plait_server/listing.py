"""The list of runs of the live page: running runs, runs that ended in this process, and runs of the journals.

Runs that ended in this process are kept in memory with their times, steps and answers. Data of other runs come from
the index of the journals; their steps are counted from their events when the list shows them.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from plait.core.errors import ConfigError
from plait.core.values import Frozen, as_text, writable
from plait.runtime.client.answer import Answer
from plait.runtime.journal.directory import RunEntry, entries
from plait.runtime.journal.journal import Journal
from plait.runtime.journal.location import Location

from .tenants import ServedRun, User

_HEAD, _ANSWER = 200, 2000
"""Characters of a run's text, and of its answer, that a list holds."""
_ENDED = 10_000
"""Maximum number of rows in memory of runs that ended in this process."""
_INDEXED = 10_000
"""Runs of the journals that a list looks through."""
_FRESH, _SHARE = 2.0, 20.0
"""Minimum age of the index in seconds before it is read again, and the same as a multiple of the time to read it."""
_COUNTING = 0.5
"""Seconds that one answer spends on counting steps in journals; what is left comes with the next."""

Row = dict[str, Any]


class ListQuery(Frozen):
    """The query of `GET /runs`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    scope: Literal["here", "all"] = "all"
    """`here`: runs of this process. `all`: also those of other processes whose journals are in the same place."""
    past: bool = True
    words: str = Field(default="", max_length=500)
    """Only rows that have this text in their id, status, planner, question or answer."""
    sort: Literal["created", "seconds", "steps", "tokens", "status", "planner", "text"] = "created"
    up: bool = False
    """Whether the order is ascending."""
    after: int = Field(default=0, ge=0)
    """Rows that are left out at the beginning."""
    limit: int = Field(default=200, ge=1, le=1000)


class EndedRuns:
    """The runs that ended in this process, the newest last."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, tuple[User, Row]] = OrderedDict()

    def add(self, live: ServedRun, answer: Answer | None) -> None:
        """Take note of one."""
        self._rows[live.handle.run] = (live.user, ended_row(live, answer))
        if len(self._rows) > _ENDED:
            self._rows.popitem(last=False)

    def rows(self, user: User) -> list[Row]:
        """Return the rows of the runs that a tenant may see."""
        return [row for whose, row in self._rows.values() if user.sees(whose)]


def _row(run: str, status: str, created: str, planner: str, text: str, **more: Any) -> Row:
    row: Row = {"run": run, "status": status, "created": created, "planner": planner, "model": "", "tokens": 0}
    return {**row, "seconds": None, "steps": None, "text": text, "answer": "", "here": False, **more}


def ended_row(live: ServedRun, answer: Answer | None) -> Row:
    """Return the row of a run that has ended; `None`: its journal broke, and there is no answer."""
    request = live.handle.request
    created = datetime.fromtimestamp(live.began, UTC).isoformat(timespec="milliseconds")
    more: Row = {"model": request.model or "", "seconds": round(time.time() - live.began, 3), "here": True}
    if answer is not None:
        value = answer.answer if answer.answer is not None else answer.value
        text = answer.failure.message if value is None and answer.failure is not None else as_text(value)
        more |= {
            "tokens": answer.usage.completion,
            "seconds": round(answer.seconds, 3),
            "steps": len(answer.report.steps),
            "answer": "" if value is None and answer.failure is None else writable(text[:_ANSWER]),
        }
    status = "failed" if answer is None else answer.status
    return _row(live.handle.run, status, created, request.planner.name, writable(request.text[:_HEAD]), **more)


class JournalRuns:
    """What the journals hold, read again from time to time. For threads: two at once read the same thing twice."""

    def __init__(self) -> None:
        self._read: tuple[float, float, list[RunEntry], bool] = (0.0, 0.0, [], False)
        """When it was read, the seconds that took, the runs, and whether there were more."""
        self._steps: OrderedDict[str, int] = OrderedDict()

    def entries(self, where: Location) -> tuple[list[RunEntry], bool]:
        """Return the newest runs, and whether there are more than a list looks through."""
        at, took, index, more = self._read
        began = time.monotonic()
        if not at or began - at > max(_FRESH, _SHARE * took):
            index, more = [], False
            for entry in entries(where):
                if len(index) == _INDEXED:
                    more = True
                    break
                index.append(entry)
            now = time.monotonic()
            self._read = (now, now - began, index, more)
        return index, more

    def count_steps(self, rows: Iterable[Row], places: Mapping[str, Location]) -> None:
        """Fill in how many steps the runs of journals had."""
        until = time.monotonic() + _COUNTING
        for row in rows:
            run = row["run"]
            if row["steps"] is None and run in places and time.monotonic() < until:
                if run not in self._steps:
                    self._steps[run] = _steps_in(places[run], run)
                row["steps"] = self._steps[run]
                if row["status"] == "running" or len(self._steps) > _ENDED:  # it may get more
                    self._steps.pop(run if row["status"] == "running" else next(iter(self._steps)))


def _steps_in(where: Location, run: str) -> int:
    """Return the number of steps that the events of a run plan."""
    steps = 0
    try:
        for row in Journal(where).rows_of(run):
            plan = {"submitted": "plan", "expanded": "patch"}.get(row.kind)
            if plan is not None and not row.foreign:
                steps += len((json.loads(row.event).get(plan) or {}).get("steps", ()))
    except (ConfigError, ValueError, AttributeError):  # a damaged journal: the page of the run shows the error
        pass
    return steps


def index_row(entry: RunEntry) -> Row:
    """Return the row of a run that a journal holds."""
    ended = _time(entry.ended)
    seconds = None if ended is None else max(0.0, (ended - entry.created).total_seconds())
    created = entry.created.isoformat()
    return _row(entry.run, entry.status, created, entry.planner, entry.text, tokens=entry.tokens, seconds=seconds)


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def listed(rows: Sequence[Row], query: ListQuery, live: Callable[[Row], bool]) -> tuple[list[Row], int]:
    """Return the rows of one page, and the number of rows of all pages. If the newest come first, running runs come
    before them."""
    words = query.words.strip().casefold()
    if words:
        rows = [row for row in rows if words in _searched(row)]

    def key(row: Row) -> tuple[bool, Any]:
        value = row.get(query.sort)
        known = value is not None
        return known, (value.casefold() if isinstance(value, str) else value) if known else 0

    ordered = sorted(rows, key=key, reverse=not query.up)
    if query.sort == "created" and not query.up:
        ordered.sort(key=lambda row: not live(row))
    return ordered[query.after : query.after + query.limit], len(ordered)


def _searched(row: Row) -> str:
    return " ".join(str(row.get(name, "")) for name in ("run", "status", "planner", "text", "answer")).casefold()
