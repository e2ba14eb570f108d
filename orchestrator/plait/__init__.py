"""plait: plans, runs and merges parallel lines of reasoning. The public names, and nothing else.

Names are loaded when first used, so that importing a plugin's one dependency, `plait.core`, stays light.
"""

from __future__ import annotations

import importlib
from pkgutil import extend_path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .apps.evaluate import evaluate
    from .core.agent import Agent
    from .core.budget import Budget
    from .core.call_config import CallConfig
    from .core.errors import PlaitError
    from .core.flow import Flow
    from .core.interfaces import Merge, Planner, Policy, Verdict, Worker
    from .core.ops import Join, ModelCall, Plugin, Ref, ToolCall
    from .core.plan import Plan, Step
    from .core.request import Request
    from .core.sampling import Generation, Sampling
    from .core.task import Task
    from .core.tools.context import Question, ToolContext
    from .core.tools.tool import Tool, tool
    from .runtime.client.answer import Answer, ApprovalRequested, RunEnded, RunEvent, StepEvent, TextDelta
    from .runtime.client.client import AsyncOrchestrator
    from .runtime.client.config import Config
    from .runtime.client.single_run import arun, run
    from .runtime.client.sync import Orchestrator

__path__ = extend_path(__path__, __name__)  # a checkout holds the package in four roots, an install in one folder

__all__ = [
    "Agent", "Answer", "ApprovalRequested", "AsyncOrchestrator", "Budget", "CallConfig", "Config", "Flow",
    "Generation", "Join", "Merge", "ModelCall", "Orchestrator", "PlaitError", "Plan", "Planner", "Plugin", "Policy",
    "Question", "Ref", "Request", "RunEnded", "RunEvent", "Sampling", "Step", "StepEvent", "Task", "TextDelta",
    "Tool", "ToolCall", "ToolContext", "Verdict", "Worker", "__version__", "arun", "evaluate", "run",
    "tool",
]  # fmt: skip

__version__ = "0.1.0"

_NAMES = {
    ".apps.evaluate": ("evaluate",),
    ".core.agent": ("Agent",),
    ".core.errors": ("PlaitError",),
    ".core.flow": ("Flow",),
    ".core.interfaces": ("Merge", "Planner", "Policy", "Verdict", "Worker"),
    ".core.budget": ("Budget",),
    ".core.ops": ("ToolCall", "Join", "Plugin", "Ref", "ModelCall"),
    ".core.plan": ("Plan", "Step"),
    ".core.call_config": ("CallConfig",),
    ".core.request": ("Request",),
    ".core.sampling": ("Generation", "Sampling"),
    ".core.task": ("Task",),
    ".core.tools.context": ("ToolContext", "Question"),
    ".core.tools.tool": ("Tool", "tool"),
    ".runtime.client.answer": ("Answer", "RunEnded", "ApprovalRequested", "RunEvent", "StepEvent", "TextDelta"),
    ".runtime.client.client": ("AsyncOrchestrator",),
    ".runtime.client.config": ("Config",),
    ".runtime.client.single_run": ("arun", "run"),
    ".runtime.client.sync": ("Orchestrator",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
