"""Answers to another process's questions: small files in a folder beside the journal, or rows in its store.

A journal has one writer. An answer to a run of another process, or of an ended process, is therefore stored here until
the journal's writer takes and records it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from pathlib import Path
from urllib.parse import quote

from pydantic import JsonValue

from ...core.errors import ConfigError, UsageError
from ...core.tools.context import OPERATOR, Answerer, GivenAnswer, Question
from ...core.values import json_value
from .directory import RunEntry, entries
from .journal import Journal
from .location import Database, Location

MAX_ANSWER_BYTES = 1_000_000
"""Bytes of an answer."""


def pending(path: Location) -> list[tuple[RunEntry, Question]]:
    """Return the open questions, with their runs, of all active runs in a journal or a folder of journals. Raises
    `ConfigError`."""
    questions: list[tuple[RunEntry, Question]] = []
    for entry in entries(path):
        if entry.status not in ("running", "interrupted"):
            continue
        asked: dict[str, Question] = {}
        for note in Journal(entry.path).notes(entry.run):
            if note.kind == "asked":
                with contextlib.suppress(ValueError):
                    asked[note.step] = Question.model_validate(note.note)
            elif note.kind == "answered":
                asked.pop(note.step, None)
        questions += [(entry, question) for question in asked.values() if not _is_waiting(entry, question.id)]
    return questions


def leave(path: Location, question: str, value: JsonValue, by: Answerer = OPERATOR) -> Question:
    """Store an answer to an open question in a journal or a folder of journals; return the question. Raises
    `UsageError` if the question is not open, `Unanswered` for an invalid answer, `NotAllowed` for an unauthorised
    answerer."""
    there = pending(path)
    match = next((pair for pair in there if pair[1].id == question), None)
    if match is None:
        known = f"open are {', '.join(open_question.id for _, open_question in there)}" if there else "none is open"
        raise UsageError(f"there is no open question {question!r:.200}: {known}")
    entry, asked = match
    by.check(asked, entry.share or "")
    checked = asked.check(json_value(value))
    given = GivenAnswer(value=checked, by=by, at=time.time(), call=asked.call).model_dump(mode="json")
    text = json.dumps(given, allow_nan=False)
    if isinstance(entry.path, Database):
        from . import store

        store.leave_answer(entry.path, entry.run, question, given)
        return asked
    file = _file(entry.path, question)
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        draft = file.with_name(f".{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(text)
        draft.rename(file)
    except OSError as error:
        raise ConfigError(f"the answer cannot be left beside {entry.path}: {error.strerror}") from None
    return asked


def take(path: Location, question: Question, asked_by: str = "") -> tuple[JsonValue, Answerer] | None:
    """Remove and return the stored answer to a question and its answerer, if any. An unreadable or invalid answer, or
    one by an unauthorised answerer, is ignored. `asked_by`: the run's tenant."""
    data = _take_answer(path, question)
    if data is None or len(data) > MAX_ANSWER_BYTES:
        return None
    try:
        left = json_value(json.loads(data))
        json.dumps(left, allow_nan=False)  # a number beyond all others is no JSON
        given = GivenAnswer.model_validate(left)
        return (question.check(given.value), given.by) if given.counts(question, asked_by) else None
    except Exception:  # not JSON, nested too deeply, or not among the choices
        return None


def _take_answer(path: Location, question: Question) -> str | bytes | None:
    if isinstance(path, Database):
        from . import store

        return store.take_answer(path, question.run, question.id)
    file = _file(path, question.id)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_ANSWER_BYTES + 1)
        file.unlink()
        with contextlib.suppress(OSError):
            file.parent.rmdir()  # if it is empty now
    except OSError:
        return None
    return data


def _is_waiting(entry: RunEntry, question: str) -> bool:
    """Whether an answer waits to be taken."""
    if isinstance(entry.path, Database):
        from . import store

        return store.answered(entry.path, entry.run, question)
    return _file(entry.path, question).exists()


def _file(path: Path, question: str) -> Path:
    return path.with_name(f"{path.name}.answers") / f"{quote(question, safe='')}.json"
