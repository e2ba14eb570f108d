"""Questions of the user's own to evaluate on: a file of them, and whether an answer is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from ...core.plan import Plugin
from ...core.task import Task
from ...runtime.plugins.loader import Plugins
from .rows import read_problems

__all__ = ["Question", "read_questions"]


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
    example = f'{{"{text}": "6 times 7?", "{want}": "42"}}'
    return read_problems(path, lambda fields: _question(plugins, spec, fields, text, want, verifies), example)


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
