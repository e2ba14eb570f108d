"""An independent check of what a planner of tools writes: read as the orchestrator reads it, carried out on random
tables, compared with what the question means.

Plans are read by the planner `llmcompiler`'s own parser; the answer comes from the question (`plan.answer`), not from
the teacher's calls. Two plans that always give the same answer are equivalent, whatever they look like.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from plait.core.tools.tool import ToolSpec
from plait.planners.tools.llmcompiler import LLMCompiler
from plait_bench.tasks.tables import Tables
from plait_bench.tasks.tables.language import read
from plait_bench.tasks.tables.questions import PARAMETERS, Facts, answer, carry_out

from .generate import Case

WORLDS = 8
"""Random fact tables that a plan has to be right on."""
_ACTION = re.compile(r"\s*Action: ([a-z_]+)\((.*)\)\s*")
_FINISH = re.compile(r"\s*Action: Finish\((.*)\)(?:<END_OF_RESPONSE>|<end>)?\s*")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>\n?")


class Verdict(NamedTuple):
    """What a plan is worth."""

    executable: bool
    """Every line can be run, and none is left out."""
    equivalent: bool
    """The last task gives the right answer on every table."""


@functools.cache
def specs() -> tuple[ToolSpec, ...]:
    """The tools that plans call."""
    return tuple(tool.spec for tool in Tables(text="who is Ardan?").tools())


def judge_plan(case: Case, text: str) -> Verdict:
    """Judge a plan for a question, `join()` included."""
    parsed = LLMCompiler().parse(text, specs())
    steps = parsed["steps"]
    if parsed["errors"] or parsed["repairs"] or not isinstance(steps, list) or len(steps) < 2:
        return Verdict(False, False)
    tasks = [step for step in steps[:-1] if isinstance(step, dict)]
    right = all(_gives(case, tasks, Facts(1000 + world)) for world in range(WORLDS))
    return Verdict(True, right)


def _gives(case: Case, tasks: list[dict[str, JsonValue]], facts: Facts) -> bool:
    done: dict[str, JsonValue] = {}
    try:
        for task in tasks:
            args = task["args"]
            assert isinstance(args, dict)
            tool = str(task["tool"])
            values = [_valued(args.get(name), case.meaning, done) for name in PARAMETERS[tool]]
            done[str(task["name"])] = carry_out(tool, values, facts)
    except (ValueError, KeyError, AssertionError):
        return False
    return bool(done) and same(done[str(tasks[-1]["name"])], right_answer(case, facts))


def right_answer(case: Case, facts: Facts) -> JsonValue:
    """What a question's answer is, from the question as it was put."""
    return answer(read(case.plain), facts)


def same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same; `true` is no 1."""
    return type(one) is type(other) and one == other


def _valued(value: JsonValue, meaning: Mapping[str, str], done: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(value, dict) and set(value) == {"$ref"}:
        return done[str(value["$ref"])]
    if isinstance(value, dict) and set(value) == {"$text"}:
        parts = value["$text"]
        assert isinstance(parts, list)
        return "".join(str(_valued(part, {}, done)) for part in parts)
    if isinstance(value, list):
        return [_valued(each, meaning, done) for each in value]
    if isinstance(value, str):
        meant = meaning.get(value, value)
        return int(meant) if meant.isdigit() else meant
    return value


# -- turns -----------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call that a turn asks for, arguments in the tool's order."""

    tool: str
    args: tuple[JsonValue, ...]


def read_action(text: str) -> Call | None:
    """The one call of a turn, `Action: add(482, "n0")`; None for any other text."""
    found = _ACTION.fullmatch(text)
    if found is None or found[1] not in PARAMETERS:
        return None
    args = _json(f"[{found[2]}]")
    if not isinstance(args, list) or len(args) != len(PARAMETERS[found[1]]):
        return None
    return Call(found[1], tuple(args))


def read_finish(text: str) -> str | None:
    """The answer in `Action: Finish(…)`."""
    found = _FINISH.fullmatch(text)
    return found[1] if found else None


def read_calls(text: str) -> list[Call] | None:
    """The native calls of a turn; None where one cannot be read, empty without any."""
    out: list[Call] = []
    for body in _CALL.findall(text):
        match _json(body):
            case {"name": str(name), "arguments": dict(args)} if tuple(args) == PARAMETERS.get(name):
                out.append(Call(name, tuple(args.values())))
            case _:
                return None
    return out


def _json(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except ValueError:
        return None


def observe(case: Case, call: Call, facts: Facts, fails: Callable[[Call], bool]) -> str:
    """What a call shows: its result, or that it failed."""
    try:
        if fails(call):
            return "<failed>"
        value = carry_out(call.tool, [_valued(arg, case.meaning, {}) for arg in call.args], facts)
    except (ValueError, KeyError):
        return "<failed>"
    return value if isinstance(value, str) else json.dumps(value)
