"""Questions of the user's own to evaluate on: a file of them, and whether an answer is right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import PluginError, UsageError
from ...core.messages import did_you_mean
from ...core.ops import Plugin
from ...core.task import Environment, Task
from ...runtime.plugins.loader import Plugins
from .rows import read_problems


@dataclass(frozen=True, slots=True)
class DatasetQuestion:
    """A question, and what is known of its answer."""

    task: Task
    want: Any = None
    """The right answer; `None` where the task itself can tell."""
    place: Plugin | None = None
    """The environment that it is worked on and graded in."""

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

    def environment(self) -> Environment | None:
        """Return a new environment for it, if it needs one."""
        return None if self.place is None else Plugins().environment(self.place, self.text)

    def record(self) -> dict[str, Any]:
        """Return the question's record."""
        return {"text": self.text, "want": self.want}


def environment_of(task: str, asked: Plugin | None) -> Plugin | None:
    """Return the environment for a task's questions: the one asked for, or the one of the task's name, if any."""
    name = Plugin.of(task).name
    if asked is None and name not in Plugins().names("environment"):
        return None
    environment = asked or Plugin(name=name)
    cls = Plugins().class_of("environment", environment.name)
    if unknown := sorted(set(environment.options) - set(cls.model_fields)):  # pyright: ignore[reportAttributeAccessIssue]
        near = did_you_mean(unknown[0], cls.model_fields)  # pyright: ignore[reportAttributeAccessIssue]
        raise PluginError(f"environment {environment.name!r}: there is no option {', '.join(unknown)}{near}")
    return environment


def drawn_questions(spec: Plugin, count: int, seed: int, place: Plugin | None = None) -> list[DatasetQuestion]:
    """Return problems that a task draws itself. Raises `UsageError` for a task that draws none."""
    plugins = Plugins()
    draws: Any = getattr(plugins.class_of("task", spec.name), "drawn", None)
    if draws is None:
        raise UsageError(
            f"the task {spec.name!r} draws no problems: give a file of them, `plait eval FILE --task {spec.name}`; "
            "only tasks with `drawn` draw their own"
        )
    given = draws(count, seed, **spec.options)
    return [DatasetQuestion(plugins.task(spec, text), want, place) for text, want in given]


def of_a_set(task: str) -> str:
    """Return a task's text in which a word behind the name of one of plait's tasks is the set that it draws from.

    >>> of_a_set("reasoning-gym:gsm_symbolic")
    'reasoning-gym:set=gsm_symbolic'
    """
    name, colon, rest = task.partition(":")
    alone = colon and rest and not any(sign in rest for sign in ":=")
    return f"{name}:set={rest}" if alone and name in Plugins().names("task") else task


def read_questions(
    path: Path,
    spec: Plugin,
    text: str = "text",
    want: str = "want",
    place: Plugin | None = None,
    limit: int | None = None,
) -> list[DatasetQuestion]:
    """Read the first `limit` rows of a file; `text` and `want` name the fields, `place` is the environment.

    Raises `UsageError` for a task that cannot be evaluated, and `ConfigError` that names the lines that are no
    questions.
    """
    plugins = Plugins()
    cls: Any = plugins.class_of("task", spec.name)
    if missing := [name for name in ("render", "extract", "key") if getattr(cls, name) is getattr(Task, name)]:
        raise UsageError(f"the task {spec.name!r} lacks {', '.join(missing)}: an answer has to be found and compared")
    verifies = cls.verify is not Task.verify
    example = f'{{"{text}": "6 times 7?", "{want}": "42"}}'
    return read_problems(
        path, lambda fields: _question(plugins, spec, fields, text, want, verifies, place), example, limit
    )


def _question(
    plugins: Plugins, spec: Plugin, fields: Any, text: str, want: str, verifies: bool, place: Plugin | None
) -> DatasetQuestion:
    read_row: Any = getattr(plugins.class_of("task", spec.name), "row_text", None)
    if read_row is not None and not (isinstance(fields, dict) and text in fields):
        fields = {text: read_row(fields)}
    if not isinstance(fields, dict) or not isinstance(fields.get(text), str):
        names = [str(name) for name in fields] if isinstance(fields, dict) else []
        there = did_you_mean(text, names) + (f" (there are: {', '.join(names)})" if names else "")
        raise ValueError(f"has no text in the field {text!r}{there}; --text names another")
    wanted = fields.get(want)
    if wanted is None and not verifies:
        raise ValueError(
            f"has no {want!r}{did_you_mean(want, fields)}, and the task {spec.name!r} cannot tell what is right; "
            "--want names another"
        )
    question = DatasetQuestion(plugins.task(spec, fields[text]), wanted, place)
    if wanted is not None and place is None:
        question.task.key(wanted)  # said now rather than when the tokens are spent
    return question
