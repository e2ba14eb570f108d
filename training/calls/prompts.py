"""The prompt of a question, as the planner `llmcompiler` sends it with this template."""

from __future__ import annotations

from plait.core.call_config import CallConfig
from plait.core.interfaces import PlanningContext
from plait.core.request import Request
from plait.planners.tools.llmcompiler import prompts
from plait.tasks.plain import Plain

from .generate import Example

__all__ = ["TEMPLATE", "prompt"]

TEMPLATE = """\
Write the calls of functions that answer a question, one a line, and then join().

The functions are:

{tools}
"""


def prompt(example: Example) -> str:
    """Return the content of a user's message."""
    brief = PlanningContext(Request(text=example.question), Plain(text=example.question), example.tools)
    return prompts.plan_prompt(CallConfig(template=TEMPLATE), brief) + "\n"
