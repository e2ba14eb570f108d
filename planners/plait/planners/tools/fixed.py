"""Planner `fixed`: run a hand-written plan from a file or an option."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from plait.core.declarations import PlanSpec, ServerFile
from plait.core.errors import PlanError
from plait.core.interfaces import Planner, PlanningContext
from plait.core.messages import suggest_near
from plait.core.plan import Plan

__all__ = ["Fixed"]

_PLACEHOLDER = re.compile(r"\{\{(request|prompt)\}\}")
_MAX_BYTES = 16 << 20


class Fixed(Planner):
    """Run the plan given by `path` or `graph` (one of them).

    Inside the `op` of a step, `{{request}}` in a string becomes the request's text and `{{prompt}}` the task's prompt.
    They are filled in once and not parsed again. The planner is not a published method and has no differences; the
    defaults are those of `Step` and `Sampling`.
    """

    path: Annotated[str | None, ServerFile()] = Field(
        default=None,
        description="A file to read: a plan, as `.json` or `.toml`.",
    )
    graph: Annotated[dict[str, JsonValue] | None, PlanSpec()] = Field(
        default=None, description='The plan itself: `{"steps": […], "output": …}`.'
    )

    def start(self, brief: PlanningContext) -> Plan:
        """Return the plan. Raises `PlanError` with the place of the first mistake."""
        source, raw = self._read()
        if isinstance(raw, dict) and isinstance(steps := raw.get("steps"), list):
            # A task may have no prompt for this text: it is rendered only where a plan asks for it.
            values = {"request": lambda: brief.request.text, "prompt": brief.task.render}
            filled = [
                {**step, "op": _fill(step["op"], values)} if isinstance(step, dict) and "op" in step else step
                for step in steps
            ]
            raw = {**raw, "steps": filled}
        try:
            plan = Plan.model_validate(raw)
        except ValidationError as error:
            raise PlanError(f"{source}: {_first(error)}") from None
        if plan.output is None:
            raise PlanError(f'{source}: $.output: missing; name the step whose value is the answer ("output": "…")')
        for i, step in enumerate(plan.steps):
            if step.expands:
                raise PlanError(
                    f"{source}: $.steps[{i}].expands: a fixed plan cannot expand, since it has no reader; remove it"
                )
        return plan

    def _read(self) -> tuple[str, JsonValue]:
        """Return the plan's name in messages, and the unparsed plan."""
        if (self.path is None) == (self.graph is None):
            raise PlanError("the planner `fixed` needs a plan: give its option `path` (a file) or `graph`, one of them")
        if self.path is None:
            return "graph", self.graph
        path = Path(self.path)
        if path.suffix not in (".json", ".toml"):
            raise PlanError(f"{path}: a plan file ends in .json or .toml")
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise PlanError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, which no plan is")
            text = path.read_text(encoding="utf-8")
            return str(path), tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        except OSError as error:
            raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from None
        except RecursionError:
            raise PlanError(f"{path}: nested too deeply") from None
        except ValueError as error:
            raise PlanError(f"{path}: is not {path.suffix[1:].upper()}: {error}") from None


def _first(error: ValidationError) -> str:
    """Return the first mistake and its place as text."""
    details = error.errors(include_url=False)
    place = "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in details[0]["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{place}: {details[0]['msg']}{suggest_near(details[0], Plan)}{more}"


def _fill(value: JsonValue, values: Mapping[str, Callable[[], str]]) -> JsonValue:
    match value:
        case str():
            return _PLACEHOLDER.sub(lambda hole: values[hole[1]](), value)
        case list():
            return [_fill(item, values) for item in value]
        case dict():
            return {key: _fill(item, values) for key, item in value.items()}
        case _:
            return value
