"""The rows of a journal's tables: headers of sessions, events, notes and the index of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError
from ...core.events import Event, event_adapter
from ...core.values import Frozen
from .location import Location

FORMAT = 6
"""Of events, actions and headers; the same in every store."""
HEAD = 200
"""Characters of a request that the index of runs holds."""


def demand_format(version: int, place: object) -> None:
    """Raise `ConfigError` for a journal of another format than that of this version."""
    if version > FORMAT:
        raise ConfigError(
            f"{place} has journal format {version}, newer than {FORMAT}, the one that this version of plait reads: "
            "upgrade plait"
        )
    if version < FORMAT:
        raise ConfigError(
            f"{place} has journal format {version}, older than {FORMAT}, the one that this version of plait reads: "
            "read it with the version that wrote it, and give new runs another journal"
        )


class Header(Frozen):
    """The head of a session: the options of the machine that its events are for."""

    format: int = FORMAT
    plait: str
    """Version of this package that wrote them."""
    created: str
    """When, UTC, ISO 8601."""
    grace: float
    lease: float | None
    resumes: str | None = None
    """The run that this session resumes. Its machine is not a new one but that of event `base`."""
    base: int | None = None
    """The last event of the session that it continues."""
    told: bool = False
    """The machine had runs that this file does not hold. Then the actions are those of this file's runs, and a replay
    follows the attempts that they name. Without it, the machine's events alone determine the attempts."""
    meta: dict[str, JsonValue] = {}
    """Metadata of the writer. Values whose name looks like that of a secret are not kept."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, and the actions that followed."""

    seq: int
    at: float
    run: str | None
    """The run that it concerns, if known."""
    kind: str
    event: str
    """JSON."""
    actions: str | None
    """JSON list, as `dump` makes it; `None` if the writer ended before it could write them."""
    foreign: bool = False
    """Of another run: read for what it came to in the one that is read."""

    def load(self) -> Event:
        """Return the event. Raises `ConfigError` if it cannot be read."""
        try:
            return event_adapter.validate_json(self.event)
        except ValidationError:
            try:  # Python's reader takes what pydantic's does not: lone surrogates, as tools and models may write
                return event_adapter.validate_python(json.loads(self.event))
            except ValueError as error:
                detail = str(error).partition("\n")[0]
                raise ConfigError(
                    f"event {self.seq} of the journal cannot be read ({detail}): the file is damaged, or another "
                    "version of plait wrote it"
                ) from None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that no machine needs to know, but a resumed run does."""

    run: str
    step: str
    attempt: int | None
    kind: str
    """`intent`: a call that changes the world is about to be made. `asked`, `answered`: a question to a person (`step`
    is its id). `ruled`: what was decided about a call whose outcome is unknown."""
    note: JsonValue


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the index of a journal."""

    run: str
    first: int
    """Number of the event that submitted it."""
    created: str
    """When it was submitted, UTC, ISO 8601."""
    text: str
    """The beginning of the question."""
    planner: str
    status: str | None
    """How it ended; `None` if it has not, or if the writer was killed before it recorded the end."""
    tokens: int
    """Generated, once it has ended."""
    ended: str | None


EventLine = tuple[int, float, str | None, str, str | bytes, str | bytes | None]
"""Number, time, run, kind, event, actions."""
NoteRow = tuple[str, str, int | None, str, str | bytes]
"""Run, step, attempt, kind, note."""


@dataclass(slots=True)
class WriteBatch:
    """The rows of one transaction."""

    events: list[EventLine] = field(default_factory=list[Any])
    actions: list[tuple[str, int]] = field(default_factory=list[Any])
    """Actions of events that are written already, and their numbers."""
    marks: list[tuple[str, int]] = field(default_factory=list[Any])
    """Runs, and numbers of events of others that concern them."""
    begun: list[tuple[str, int, str, str, str, str]] = field(default_factory=list[Any])
    """Runs that were submitted: run, first, created, text, planner, share."""
    ended: list[tuple[str, int, str, str]] = field(default_factory=list[Any])
    """Runs that are over: status, tokens, ended, run."""
    notes: list[NoteRow] = field(default_factory=list[Any])


class Storage(Protocol):
    """What holds one journal: a file of SQLite, or a part of a PostgreSQL database. Texts are `packed`.

    All methods raise `ConfigError`, with the cause, for what cannot be used.
    """

    @property
    def location(self) -> Location:
        """Where it is."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        ...

    @property
    def size(self) -> int:
        """Bytes written, about; 0 if it is not open."""
        ...

    def hold(self, run: str | None) -> None:
        """Claim it for writing; with `run`, to resume that run."""
        ...

    def open(self) -> int:
        """Open it for writing, claiming and making it if need be; return the number of the next event."""
        ...

    def begin(self, first: int, header: str) -> None:
        """Write a session's header, in place of one that starts at the same event."""
        ...

    def write(self, batch: WriteBatch, sync: bool) -> None:
        """Write a batch, all of it or nothing; with `sync` it survives the end of the machine."""
        ...

    def give_up(self) -> None:
        """Have the runs of this process in it counted as failed, as soon as they can be: they have ended here."""
        ...

    def close(self) -> None:
        """Close it and release the claim. May be called twice."""
        ...

    def rows(self, after: int) -> Iterator[tuple[int, float, str | None, str, str | bytes, str | bytes | None]]:
        """Yield number, time, run, kind, event and actions of the events after one, oldest first."""
        ...

    def rows_of(
        self, run: str, after: int
    ) -> Iterator[tuple[int, float, str | None, str, str | bytes, str | bytes | None]]:
        """Yield the same of the events that concern a run: its own, those of workers, those of others that came to
        something in it."""
        ...

    def last(self) -> int:
        """Return the number of the last event."""
        ...

    def notes(self, run: str) -> list[NoteRow]:
        """Return the notes of a run, oldest first."""
        ...

    def runs(self, before: int | None = None, like: str = "", most: int = -1) -> list[tuple[Any, ...]]:
        """Return lines of the index, the newest first: of runs submitted before an event, whose ids begin so; `most`
        of them at most."""
        ...

    def count(self) -> int:
        """Return the number of runs in the index."""
        ...

    def sessions(self) -> list[tuple[int, str]]:
        """Return the first event and the header of each session."""
        ...


def is_run_line(line: tuple[object, ...]) -> bool:
    """Whether the columns of a line of the index are of the kinds and sizes that a journal writes."""
    run, first, created, text, planner, status, tokens, ended = line
    texts = [(run, 64), (created, 64), (text, HEAD + 8), (planner, 4096)]
    sized = all(isinstance(value, str) and len(value) <= most for value, most in texts)
    ends = all(value is None or (isinstance(value, str) and len(value) <= 64) for value in (status, ended))
    return sized and ends and all(type(number) is int and number >= 0 for number in (first, tokens))
