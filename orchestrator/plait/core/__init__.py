"""Types for plugins: plans, results, interfaces. This package does no I/O.

Names are loaded on first use, so importing one module does not import the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .budget import Budget
    from .events import Job
    from .flow import Flow, StepFailed, Trajectory
    from .interfaces import (
        Allocation,
        Allocator,
        BranchSpec,
        Defer,
        Hedge,
        Merge,
        Pin,
        Planner,
        PlanningContext,
        Policy,
        Progress,
        Reader,
        ReviewAt,
        Stop,
        Verdict,
        Worker,
    )
    from .ops import Join, ModelCall, Plugin, Ref, Text, Tokens, ToolCall
    from .plan import Plan, Step
    from .request import Request
    from .result import Failure, Result, Usage
    from .sampling import Sampling
    from .task import Task
    from .tools.tool import Tool, ToolSpec, tool
    from .view import Branch, Siblings, StepView, View, WorkerView

__all__ = [
    "Allocation", "Allocator", "Branch", "BranchSpec", "Budget", "Defer", "Failure", "Flow", "Hedge", "Job", "Join",
    "Merge", "ModelCall", "Pin", "Plan", "Planner", "PlanningContext", "Plugin", "Policy", "Progress", "Reader",
    "Ref", "Request", "Result", "ReviewAt", "Sampling", "Siblings", "Step", "StepFailed", "StepView", "Stop",
    "Task", "Text", "Tokens", "Tool", "ToolCall", "ToolSpec", "Trajectory", "Usage", "Verdict", "View", "Worker",
    "WorkerView", "tool",
]  # fmt: skip

_NAMES = {
    ".budget": "Budget",
    ".events": "Job",
    ".flow": "Flow Trajectory StepFailed",
    ".interfaces": "Allocation Allocator BranchSpec PlanningContext Hedge Defer Merge Pin Planner Policy Progress "
    "Reader Stop Verdict ReviewAt Worker",
    ".ops": "ToolCall Join Plugin Ref Text ModelCall Tokens",
    ".plan": "Plan Step",
    ".request": "Request",
    ".sampling": "Sampling",
    ".result": "Failure Result Usage",
    ".task": "Task",
    ".tools.tool": "Tool ToolSpec tool",
    ".view": "Branch Siblings StepView View WorkerView",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'plait.core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
