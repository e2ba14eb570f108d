"""The rows of a journal's tables: headers of sessions, events, notes and the index of runs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from ...core.errors import ConfigError
from ...core.events import Event, event_adapter
from ...core.values import Frozen
from .sqlite import FORMAT

HEAD = 200
"""Characters of a request that the index of runs holds."""


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
    """The run that this session goes on with. Its machine is not a new one but that of event `base`."""
    base: int | None = None
    """The last event of the session that it goes on from."""
    told: bool = False
    """The machine had runs that this file does not hold. Then the actions are those of this file's runs, and a replay
    follows the attempts that they name. Without it, the machine's events alone determine the attempts."""
    meta: dict[str, JsonValue] = {}
    """Metadata of the writer. Values whose name looks like that of a secret are not kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """One event, and the actions that followed."""

    seq: int
    at: float
    run: str | None
    """Which run it concerns, where that can be told."""
    kind: str
    event: str
    """JSON."""
    actions: str | None
    """JSON list, as `dump` makes it; `None` if the writer ended before it could write them."""

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
    """The beginning of what was asked."""
    planner: str
    status: str | None
    """How it ended; `None` if it has not, or the writer was killed before it could say so."""
    tokens: int
    """Generated, once it has ended."""
    ended: str | None


def is_run_line(line: tuple[object, ...]) -> bool:
    """Whether the columns of a line of the index are of the kinds and sizes that a journal writes."""
    run, first, created, text, planner, status, tokens, ended = line
    texts = [(run, 64), (created, 64), (text, HEAD + 8), (planner, 4096)]
    sized = all(isinstance(each, str) and len(each) <= most for each, most in texts)
    ends = all(each is None or (isinstance(each, str) and len(each) <= 64) for each in (status, ended))
    return sized and ends and all(type(each) is int and each >= 0 for each in (first, tokens))
