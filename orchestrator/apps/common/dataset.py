"""Questions of the user's own to evaluate on: a file of them, and whether an answer is right."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, PlaitError, UsageError
from ...core.plan import Plugin
from ...core.task import Task
from ...runtime.plugins.loader import Plugins

__all__ = ["Question", "read_questions"]

_SHOWN_FAULTS = 5


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is known of its answer."""

    task: Task
    want: Any = None
    """The right answer; `None` where the task itself can tell."""

    @property
    def text(self) -> str:
        """What is asked."""
        return self.task.text

    def is_right(self, answer: Any) -> bool:
        """Return whether an answer is the wanted one (their keys are equal), or verified where none is given."""
        if answer is None:
            return False
        if self.want is None:
            return self.task.verify(answer) is True
        return self.task.key(answer) == self.task.key(self.want)

    def record(self) -> dict[str, Any]:
        """Return what is written of the question."""
        return {"text": self.text, "want": self.want}


def read_questions(path: Path, spec: Plugin, text: str = "text", want: str = "want") -> list[Question]:
    """Read JSON lines or CSV; `text` and `want` name the fields. Raises `UsageError` for a task that cannot be
    evaluated, and `ConfigError` that names the lines that are no questions."""
    plugins = Plugins()
    cls: Any = plugins.class_of("task", spec.name)
    if missing := [name for name in ("render", "extract", "key") if getattr(cls, name) is getattr(Task, name)]:
        raise UsageError(f"the task {spec.name!r} lacks {', '.join(missing)}: an answer has to be found and compared")
    verifies = cls.verify is not Task.verify
    questions: list[Question] = []
    faults: list[str] = []
    try:
        for number, fields in _rows(path):
            try:
                questions.append(_question(plugins, spec, fields, text, want, verifies))
            except (PlaitError, ValueError, TypeError) as error:
                faults.append(f"line {number}: {error}")
    except OSError as error:
        raise ConfigError(f"the problems {path} cannot be read: {error.strerror or error}") from None
    if faults:
        more = f"; and {len(faults) - _SHOWN_FAULTS} more lines" if len(faults) > _SHOWN_FAULTS else ""
        raise ConfigError(f"{path}: {'; '.join(faults[:_SHOWN_FAULTS])}{more}")
    if not questions:
        raise ConfigError(f'{path} has no problems: write lines like {{"{text}": "6 times 7?", "{want}": "42"}}')
    return questions


def _question(plugins: Plugins, spec: Plugin, fields: Any, text: str, want: str, verifies: bool) -> Question:
    if not isinstance(fields, dict) or not isinstance(fields.get(text), str):
        there = f" (there are: {', '.join(map(str, fields))})" if isinstance(fields, dict) else ""
        raise ValueError(f"has no text in the field {text!r}{there}; --text names another")
    wanted = fields.get(want)
    if wanted is None and not verifies:
        raise ValueError(f"has no {want!r}, and the task {spec.name!r} cannot tell what is right; --want names another")
    question = Question(plugins.task(spec, fields[text]), wanted)
    if wanted is not None:
        question.task.key(wanted)  # said now rather than when the tokens are spent
    return question


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each row with the number of its (last) line."""
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.DictReader(file)
            try:
                for cells in reader:
                    yield reader.line_num, {name: cell for name, cell in cells.items() if cell}
            except csv.Error as error:
                raise ConfigError(f"{path}: line {reader.line_num} is not CSV ({error})") from None
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    yield number, line[:40].decode(errors="replace")
