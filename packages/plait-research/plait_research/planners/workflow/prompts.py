"""Prompts of the planner `workflow`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.tools.schemas import MORE_TOOLS
from plait.core.tools.tool import ToolSpec

from .plan import WorkflowFault, WorkflowPlan

_PLAN = """\
Write a plan that answers the question by calling tools, as one JSON object: {"steps": [...], "answer": ...}

Steps:
{"id": "a", "call": "tool", "args": {...}}: calls a tool. Its value is the tool's.
{"id": "b", "foreach": "$a.rows", "as": "row", "do": [steps]}: runs the steps for each item, side by side, with \
$row. Its value is the list of the last step's values.
{"id": "c", "if": condition, "then": [steps], "else": [steps]}: its value is that of the last step that ran.
{"id": "d", "while": condition, "at_most": 5, "do": [steps]}: runs the steps, and again while the condition holds. \
$d is their last value of the round before, null at first.
{"id": "e", "review": "Book it for {$a.price}?", "choices": ["yes", "no"]}: asks a person; its value is the choice.
A condition is {"left": "$a.price", "op": "<", "right": 100} (== != < <= > >= in contains), {"all": [...]}, \
{"any": [...]}, {"not": ...}, or one reference.

Rules:
- Refer to a value, or a part of it, by "$id", "$id.field", "$id.0.field", and inside a text by "{$id.field}". \
$question is the question. Steps in a body are seen in that body alone.
- Steps run side by side unless one refers to another ("after": ["id"] if it must wait without using the value).
- Every step's value is used by another step or by "answer", a text or any JSON with references. Leave "answer" out to \
have the results told to you.
- Use no tools but those below.{more}

Tools:
{tools}
{examples}
Question: {question}
"""
_ANSWER = "The plan has run. Results:\n{results}\n\nNow answer the question, in words, without a plan."
_MORE = ' If one is missing, write {{"{more}": "what it shall do"}} in place of the plan; {hidden:,} more can be found.'
_REPAIR = """\
The plan cannot run:
{faults}
{tools}Write only the steps that have a fault, as {{"replace": {{"id": step}}}}; [steps] in place of a step puts \
several there, [] takes it out. The other steps stay as they are.{answer}"""

_CHANGE = """\
The plan is running. New results:
{results}

Steps that have not begun: {waiting}
{reasons}If the plan is still right, write {{}}. Otherwise write only what changes, as {{"replace": {{"id": step}}}}: \
[steps] in place of a step puts several there, [] takes it out, and an id that is new adds a step. Steps that have \
begun stay. Write "answer" beside "replace" if it changes."""


def plan_prompt(
    prompt: CallConfig,
    question: str,
    tools: Sequence[ToolSpec],
    hidden: int,
    examples: Sequence[tuple[str, JsonValue]] = (),
) -> str:
    """Return the prompt for a plan. `hidden`: tools that the model does not see. `examples`: questions with
    plans."""
    shown = "".join(f"\nQuestion like it: {asked}\nIts plan: {_json(made)}\n" for asked, made in examples)
    more = _MORE.format(more=MORE_TOOLS, hidden=hidden) if hidden else ""
    return prompt.text(_PLAN, more=more, tools=list_tools(tools) or "(none)", examples=shown, question=question)


def list_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the prompt text of tools, one line for each tool."""
    return "\n".join(_json(tool_row(tool)) for tool in tools)


def tool_row(spec: ToolSpec) -> dict[str, JsonValue]:
    """Return a tool's description for a model."""
    returns: dict[str, JsonValue] = {"returns": spec.returns} if spec.returns else {}
    return {"name": spec.name, "description": spec.description, "args": spec.parameters, **returns}


def found_tools_message(tools: Sequence[ToolSpec]) -> str:
    """Return the answer to a request for more tools."""
    return (
        f"These tools were found:\n{list_tools(tools)}\n\nNow write the plan." if tools else "No tool was found. Plan."
    )


def repair_prompt(faults: Sequence[WorkflowFault], plan: WorkflowPlan, tools: Sequence[ToolSpec]) -> str:
    """Return the model's message about the faults of its plan; `tools`: candidates for missing ones."""
    if not plan.nodes:
        return unread_prompt(faults)
    listed = "\n".join(f"- {fault}" for fault in faults)
    more = f"Tools that may be meant:\n{list_tools(tools)}\n" if tools else ""
    answers = any(fault.node == "answer" for fault in faults)
    return _REPAIR.format(faults=listed, tools=more, answer=' Mend "answer" beside "replace".' if answers else "")


def unread_prompt(faults: Sequence[WorkflowFault]) -> str:
    """Return the model's message about a plan that could not be parsed."""
    reasons = "; ".join(map(str, faults)) or "it has no steps"
    return f"The plan cannot be read: {reasons}. Write it again, whole, as one JSON object."


def answer_prompt(prompt: CallConfig, results: Mapping[str, str], most: int | None) -> str:
    """Return the question for an answer from results, each cut to `most` characters."""
    listed = "\n".join(f"{name}: {_cut(text, most)}" for name, text in results.items())
    return prompt.text(_ANSWER, results=listed or "(none)")


def change_prompt(results: Mapping[str, str], waiting: Sequence[str], reasons: str, most: int | None) -> str:
    """Return the model's message about the new results of a running plan. `reasons`: why its last change was not
    made."""
    listed = "\n".join(f"{name}: {_cut(text, most)}" for name, text in results.items())
    reasons = f"Your last change was not made: {reasons}\n" if reasons else ""
    return _CHANGE.format(results=listed or "none", waiting=", ".join(waiting) or "none", reasons=reasons)


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most * 3 // 4]} … {text[-most // 4 :]}"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
