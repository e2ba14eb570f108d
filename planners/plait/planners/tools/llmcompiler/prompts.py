"""Prompts of the planner `llmcompiler`: tools, language of plans, earlier plans and their observations.

All calls of a run begin with the same text, `plan_prompt`, so that an engine prefills it once; what differs follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.interfaces import PlanningContext
from plait.core.tools.tool import ToolSpec
from plait.core.values import as_text

STOP_PLAN = ("<END_OF_PLAN>", "<END_OFPLAN>", "\n###", "\nQuestion:")
STOP_JOINER = ("<END_OF_RESPONSE>", "\n###", "\nQuestion:")

EARLIER = "\nPrevious Plan:\n\n"
"""Text between the prompt of a plan and what earlier plans observed."""

_PLAN = """\
Given a question, write a plan that answers it with the utmost parallelizability. Each task of the plan calls one of \
these tools:

{tools}

{join}. join(): Ends the plan and collects the results of all tasks before it, to decide on the answer or a new plan.

Rules:
- Write one task a line, as `1. tool(arguments)`. Numbers are unique and strictly increasing.
- An argument is a constant in JSON or the result of an earlier task, `$1` or `${{1}}` for that of task 1. References \
may also stand inside texts and lists. Write `$$1` for the characters `$1` themselves.
- A task starts as soon as the results it refers to are there, so do not refer to a result that is not needed.
- Use no tools but these. Write no comments and no results.
- End with join() as the last task, then <END_OF_PLAN>.
"""
_REPLAN = """\
Part of the work is done: the plans so far are given with what they observed. Begin with a line `Thought: ` on what \
is left to do. Never repeat a task that was done; refer to its result by its number. Count on from {next}.
"""
REVISE = """
The plan is running: above is what was observed so far. These tasks have no result yet:
{open}
Change the plan only if an observation asks for it. `drop(3)` leaves task 3 out if it has not begun. A task with the \
number of a task above replaces it; write the tasks that need it again, too. Count new tasks on from {next}, and refer \
to results by number. End with join(); join() alone changes nothing.

Changes:

"""
_JOINER = """\
Answer the question from what the tools have observed; write no plan. Write a line `Thought: ` with your reasoning, \
then one action:
- `Action: Finish(the answer)` if the observations suffice. The answer is short and has no explanation.
{replan}Then write <END_OF_RESPONSE>.
"""
_NATIVE = """\
- If you can call functions, call them in place of writing lines: all calls of the plan in this one turn, without \
waiting for results, in the order of the tasks; the first call is the first task. An argument that is `"$1"` and \
nothing else stands for the result of task 1, whatever its type. No join() is needed then.
"""
_MAY_REPLAN = "- `Action: Replan(what is missing)` if more tools must be called first.\n"
_LAST = "Another plan is not possible: give the best answer that there is.\n"


def plan_prompt(asked: CallConfig, brief: PlanningContext, native: bool = False) -> str:
    """Return the prompt for a plan, up to the plan's first line, or up to the earlier plans if there are any. `native`:
    the call may offer the tools as functions too."""
    shown = "\n\n".join(f"{i}. {_tool(spec)}" for i, spec in enumerate(brief.tools, 1))
    fields = {"tools": shown, "join": str(len(brief.tools) + 1)}
    ours = _PLAN.format(**fields)
    text = ours if asked.template is None else asked.text("", instructions=ours, **fields).rstrip() + "\n"
    if native:
        text += _NATIVE
    return f"{text}\nQuestion: {brief.task.render()}\n"


def replan_end(thought: str, errors: Sequence[str], numbers: Sequence[int]) -> str:
    """Return the text between the earlier plans and the new one; `numbers`: the results of the earlier plans."""
    text = f"\nThought: {thought}\n" if thought else ""
    if errors:
        text += "\nThese lines of the plan could not be run:\n" + "".join(f"- {error}\n" for error in errors)
        text += "Write what they were meant to do as new tasks, and what else is needed; then join().\n"
    listed = ", ".join(f"${number}" for number in numbers) or "none"
    text += "\n" + _REPLAN.format(next=max(numbers, default=0) + 1)
    return f"{text}\nResults that can be referred to: {listed}\n\nCurrent Plan:\n\n"


def joiner_prompt(asked: CallConfig, question: str, may_replan: bool, plan: str | None) -> tuple[str, str]:
    """Return the joiner's prompt before and after the observations. It continues `plan`, the prompt of the plan, unless
    the joiner has a template of its own, which stands first, or another model, which has not read the plan."""
    replan = _MAY_REPLAN if may_replan else ""
    ours = _JOINER.format(replan=replan) + ("" if may_replan else _LAST)
    if asked.template is None and plan is not None:
        return f"{plan}{EARLIER}", f"\n{ours}"
    text = ours if asked.template is None else asked.text("", instructions=ours, replan=replan).rstrip() + "\n"
    return f"{text}\nQuestion: {question}\n\n", "\n"


def _tool(spec: ToolSpec) -> str:
    about = "\n".join(f"   {line}".rstrip() for line in spec.description.strip().splitlines())
    return f"{signature(spec)}:\n{about}{_parameters(spec)}" if about or _parameters(spec) else signature(spec)


def signature(spec: ToolSpec) -> str:
    """Return a tool's name and typed parameters: `search(query: string, k: integer = 5)`."""
    properties = spec.parameters.get("properties")
    required = spec.parameters.get("required")
    must = required if isinstance(required, list) else []
    parts: list[str] = []
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        kind = cast("Mapping[str, JsonValue]", schema) if isinstance(schema, dict) else {}
        part = f"{name}: {_type(kind)}"
        if name not in must:
            default = kind.get("default")
            part += " = " + (f'"{default}"' if isinstance(default, str) else as_text(default))
        parts.append(part)
    return f"{spec.name}({', '.join(parts)})"


def _parameters(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties")
    lines: list[str] = []
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        about = schema.get("description") if isinstance(schema, dict) else None
        if isinstance(about, str):
            lines.append(f"\n   - {name}: {' '.join(about.split())}")
    return "".join(lines)


def _type(schema: Mapping[str, JsonValue]) -> str:
    match schema:
        case {"enum": list() as values}:
            return " | ".join(f'"{value}"' if isinstance(value, str) else as_text(value) for value in values)
        case {"type": "array", "items": dict() as items}:
            return f"list[{_type(items)}]"
        case {"type": str() as kind}:
            return "null" if kind == "null" else kind
        case {"anyOf": list() as kinds}:
            return " | ".join(_type(kind) for kind in kinds if isinstance(kind, dict))
        case {"$ref": str() as name}:
            return name.rpartition("/")[2]
        case _:
            return "any"
