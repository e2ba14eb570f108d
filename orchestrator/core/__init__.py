"""The pure core: what plugin authors import. Nothing here touches the world."""

from .base import Brief, Merge, Planner, Policy, Progress, Reader, Stop, Task, Verdict, Worker
from .ir import Budget, Call, Join, Plan, Plugin, Ref, Request, Result, Sampling, Step, Text, Think, Tokens
from .tool import Tool, ToolSpec, tool
from .view import Branch, StepView, View

__all__ = [
    "Branch",
    "Brief",
    "Budget",
    "Call",
    "Join",
    "Merge",
    "Plan",
    "Planner",
    "Plugin",
    "Policy",
    "Progress",
    "Reader",
    "Ref",
    "Request",
    "Result",
    "Sampling",
    "Step",
    "StepView",
    "Stop",
    "Task",
    "Text",
    "Think",
    "Tokens",
    "Tool",
    "ToolSpec",
    "Verdict",
    "View",
    "Worker",
    "tool",
]
