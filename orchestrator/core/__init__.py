"""The words that plugins are written in: plans, results, interfaces. Nothing here touches the world."""

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
