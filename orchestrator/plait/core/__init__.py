"""The words that plugins are written in: plans, results, interfaces. Nothing here touches the world.

Names are loaded when first used: who wants one module of this folder need not wait for the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .budget import Budget
    from .events import Job
    from .flow import Flow, Line, StepFailed
    from .interfaces import (
        Allocation,
        Allocator,
        BranchSpec,
        Brief,
        Hedge,
        Hold,
        Merge,
        Place,
        Planner,
        Policy,
        Progress,
        Reader,
        Stop,
        Verdict,
        Wake,
        Worker,
    )
    from .ops import Call, Join, Plugin, Ref, Sampling, Text, Think, Tokens
    from .plan import Plan, Step
    from .request import Request
    from .result import Failure, Result, Usage
    from .task import Task
    from .tools.tool import Tool, ToolSpec, tool
    from .view import Branch, Siblings, StepView, View, WorkerView

__all__ = [
    "Allocation",
    "Allocator",
    "Branch",
    "BranchSpec",
    "Brief",
    "Budget",
    "Call",
    "Failure",
    "Flow",
    "Hedge",
    "Hold",
    "Job",
    "Join",
    "Line",
    "Merge",
    "Place",
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
    "Siblings",
    "Step",
    "StepFailed",
    "StepView",
    "Stop",
    "Task",
    "Text",
    "Think",
    "Tokens",
    "Tool",
    "ToolSpec",
    "Usage",
    "Verdict",
    "View",
    "Wake",
    "Worker",
    "WorkerView",
    "tool",
]

_NAMES = {
    ".budget": ("Budget",),
    ".events": ("Job",),
    ".flow": (
        "Flow",
        "Line",
        "StepFailed",
    ),
    ".interfaces": (
        *("Allocation", "Allocator", "BranchSpec", "Brief", "Hedge", "Hold", "Merge", "Place", "Planner", "Policy"),
        *("Progress", "Reader", "Stop", "Verdict", "Wake", "Worker"),
    ),
    ".ops": (
        "Call",
        "Join",
        "Plugin",
        "Ref",
        "Sampling",
        "Text",
        "Think",
        "Tokens",
    ),
    ".plan": (
        "Plan",
        "Step",
    ),
    ".request": ("Request",),
    ".result": (
        "Failure",
        "Result",
        "Usage",
    ),
    ".task": ("Task",),
    ".tools.tool": (
        "Tool",
        "ToolSpec",
        "tool",
    ),
    ".view": (
        "Branch",
        "Siblings",
        "StepView",
        "View",
        "WorkerView",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'plait.core' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
