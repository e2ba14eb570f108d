"""Problems of the task `code`, as planners that run programs see them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from plait.core.errors import PlannerError
from plait.core.programs import Cell
from plait.core.task import Task

__all__ = ["RUN_PYTHON", "Cases", "read_problem", "render_cell"]

RUN_PYTHON = "run_python"
"""The tool of a sandbox that runs programs."""
Cases = Sequence[tuple[list[JsonValue], JsonValue]]
"""Arguments of a call, and what it shall return."""


def read_problem(task: Task, planner: str) -> tuple[str, list[tuple[list[JsonValue], JsonValue]]]:
    """Return the name of the function that is asked for, and its public cases. Raises `PlannerError` for other
    tasks."""
    entry, public = getattr(task, "entry", None), getattr(task, "public", ())
    if not isinstance(entry, str):
        raise PlannerError(f'{planner} needs a task that names a function: task="code"')
    return entry, [(list(case.args), case.want) for case in public]


def render_cell(cell: Cell) -> str:
    """Describe the result of a call as text for a model."""
    kind, value = cell
    return {"value": json.dumps(value), "none": "nothing: it was ended before"}.get(kind, str(value))
