"""The rows of a journal's tables: headers of sessions, events, notes and the index of runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError
from ...core.events import Event, event_adapter
from ...core.values import Frozen

FORMAT = 6
"""Of events, actions and headers; the same in every store."""
HEAD = 200
"""Characters of a request that the index of runs holds."""


def demand_format(version: int, place: object) -> None:
    """Raise `ConfigError` for a journal in another version's format."""
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
    """The header of a session, with the options of its machine."""

    format: int = FORMAT
    plait: str
    """Version of this package that wrote them."""
    created: str
    """When, UTC, ISO 8601."""
    grace: float
    lease: float | None
    resumes: str | None = None
    """The run that this session resumes. The session's machine starts from the state after event `base`."""
    base: int | None = None
    """The last event of the session that it continues."""
    told: bool = False
    """Whether the machine had runs outside this file. Then the file has only the actions of its own runs, and a replay
    follows their recorded attempts. Otherwise the machine's events alone determine the attempts."""
    meta: dict[str, JsonValue] = {}
    """Metadata of the writer, without values whose name suggests a secret."""


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
    """Whether the event belongs to another run that affected the run being read."""

    def load(self) -> Event:
        """Return the event. Raises `ConfigError` if it cannot be read."""
        try:
            return event_adapter.validate_json(self.event)
        except ValidationError:
            try:  # unlike pydantic's parser, Python's accepts lone surrogates from tools and models
                return event_adapter.validate_python(json.loads(self.event))
            except ValueError as error:
                detail = str(error).partition("\n")[0]
                raise ConfigError(
                    f"event {self.seq} of the journal cannot be read ({detail}): the file is damaged, or another "
                    "version of plait wrote it"
                ) from None


@dataclass(frozen=True, slots=True)
class Note:
    """Data that a resumed run needs, but no machine."""

    run: str
    step: str
    attempt: int | None
    kind: str
    """`intent`: a call with side effects is about to start. `asked`, `answered`: a question to a person (`step` is its
    id). `ruled`: the decision about a call with an unknown outcome."""
    note: JsonValue


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in the index of a journal."""

    run: str
    first: int
    """Number of the event that submitted it."""
    created: str
    """Time of submission, UTC, ISO 8601."""
    text: str
    """The beginning of the question."""
    planner: str
    status: str | None
    """Final state; `None` for an active run, or if the writer was killed before it recorded the end."""
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

    now: str
    """Time of day, as ISO 8601."""
    events: list[EventLine] = field(default_factory=list[Any])
    actions: list[tuple[str, int]] = field(default_factory=list[Any])
    """Actions of events that are written already, and their numbers."""
    marks: list[tuple[str, int]] = field(default_factory=list[Any])
    """Runs, and numbers of events of others that concern them."""
    begun: list[tuple[str, int, str, str, str, str]] = field(default_factory=list[Any])
    """Submitted runs: run, first, created, text, planner, share."""
    ended: list[tuple[str, int, str, str]] = field(default_factory=list[Any])
    """Runs that are over: status, tokens, ended, run."""
    notes: list[NoteRow] = field(default_factory=list[Any])


def is_run_line(line: tuple[object, ...]) -> bool:
    """Return whether the columns of an index line have types and sizes that a journal writes."""
    run, first, created, text, planner, status, tokens, ended = line
    texts = [(run, 64), (created, 64), (text, HEAD + 8), (planner, 4096)]
    sized = all(isinstance(value, str) and len(value) <= most for value, most in texts)
    ends = all(value is None or (isinstance(value, str) and len(value) <= 64) for value in (status, ended))
    return sized and ends and all(type(number) is int and number >= 0 for number in (first, tokens))
