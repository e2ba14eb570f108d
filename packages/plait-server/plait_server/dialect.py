"""A dialect: the format of the requests and answers of one endpoint, and what drives it.

A dialect reads a body to requests, and makes records of the events of their choices: dictionaries, which become
server-sent events. Its whole answer is made of the same choices.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, ClassVar

from plait.core.errors import PlaitError
from plait.core.record import StepRecord
from plait.core.request import Request
from plait.core.result import Usage
from plait.runtime.client.answer import Answer

from .bodies import Body, ServedStrategy
from .errors import ApiError, of_error
from .http import sse
from .stream_events import ChoiceEvent, ChoiceFailed, ServedChoice, text_of_step
from .tenants import ServedRun

log = logging.getLogger("plait.serve")

Record = dict[str, Any]


class StreamWriter:
    """Makes the records of one stream."""

    typed: ClassVar[bool] = True
    """Whether each server-sent event is named by its record's `type`."""
    done: ClassVar[bytes] = b""
    """What follows the last event."""
    has_ended = False
    """Whether nothing may follow."""

    def begin(self) -> Iterable[Any]:
        """Return the records before the first event."""
        return ()

    def add(self, place: int, event: ChoiceEvent) -> Iterable[Any]:
        """Return the records of an event of the choice at a position."""
        raise NotImplementedError

    def end(self) -> Iterable[Any]:
        """Return the records after the last choice ended."""
        return ()

    def encode(self, record: Any) -> bytes:
        """Return a record as a server-sent event."""
        return sse(record, record["type"] if self.typed else "")


class ApiDialect(StreamWriter):
    """The answer to one request of an endpoint. A dialect is a file of its own, and an entry in `DIALECTS`."""

    path: ClassVar[str]
    name: ClassVar[str]
    """In metrics and in the audit file."""
    body_type: ClassVar[type[Body]]
    """What a client sends."""
    raw: ClassVar[bool] = False
    """Whether the text of a choice contains the reasoning and the calls."""

    def __init__(self, runs: Sequence[ServedRun], body: Any) -> None:
        self.runs, self.body = runs, body

    @classmethod
    def read_requests(cls, body: Any, strategy: ServedStrategy) -> list[Request]:
        """Return the requests of a body, one per choice. Raises `ApiError`, and the errors of `Request.of`."""
        return [body.request(strategy)]

    def whole(self, choices: Sequence[ServedChoice]) -> Record:
        """Return the answer to send of runs that have ended."""
        raise NotImplementedError

    @classmethod
    def error(cls, error: ApiError) -> Record:
        """Return an error in this format."""
        return error.body()


async def write_stream(
    writer: StreamWriter, events: AsyncIterator[tuple[int, ChoiceEvent]]
) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events of a stream. It ends after the first choice that failed."""
    for record in writer.begin():
        yield writer.encode(record)
    place = 0
    try:
        async for place, event in events:
            for record in writer.add(place, event):
                yield writer.encode(record)
            if isinstance(event, ChoiceFailed) or writer.has_ended:
                return
    except Exception as error:  # such as a journal that can no longer be written: the run has no answer
        log.warning("a stream ends with an error: %s", error, exc_info=not isinstance(error, PlaitError))
        for record in writer.add(place, ChoiceFailed(Answer(run="", status="failed"), of_error(error))):
            yield writer.encode(record)
        return
    for record in writer.end():
        yield writer.encode(record)
    if writer.done:
        yield writer.done


def describe_step(step: StepRecord) -> dict[str, Any]:
    """Return the description of a step for clients."""
    return {
        "id": step.step,
        "name": step.path,
        "kind": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "reason": step.reason if step.state in ("failed", "cancelled") else "",
        "cause": step.cause,
    }


def describe_answer(answer: Answer, steps: bool = False) -> dict[str, Any]:
    """Return the field `plait` of an answer: what the dialects have no field for."""
    fields: dict[str, Any] = {
        "run": answer.run,
        "status": answer.status,
        "answer": answer.answer,
        "verified": answer.verified,
        "why": answer.why,
        "critical_path_tokens": answer.critical_path_tokens,
        "seconds": round(answer.seconds, 4),
    }
    if steps:
        shown = (step for step in answer.trace if step.kind != "join")
        fields["steps"] = [{**describe_step(step), "text": text_of_step(step)} for step in shown]
    return fields


def sum_usage(answers: Iterable[Answer]) -> Usage:
    """Return the total usage of several runs."""
    return sum((answer.usage for answer in answers), Usage())
