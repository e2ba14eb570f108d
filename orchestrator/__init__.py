"""plait: plans, runs and merges parallel lines of reasoning. The public names, and nothing else.

Names are loaded when first used, so that importing a plugin's one dependency, `orchestrator.core`, stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.base import Merge, Planner, Policy, Task, Verdict, Worker
    from .core.context import Context, Question
    from .core.errors import PlaitError
    from .core.ir import Budget, Call, Join, Plan, Plugin, Ref, Request, Sampling, Step, Think
    from .core.tool import Tool, tool
    from .runtime.answer import Answer, AnswerNews, AskNews, News, StepNews, TextNews
    from .runtime.client import AsyncOrchestrator
    from .runtime.config import Config
    from .runtime.sync import Orchestrator

__all__ = [
    "Answer",
    "AnswerNews",
    "AskNews",
    "AsyncOrchestrator",
    "Budget",
    "Call",
    "Config",
    "Context",
    "Join",
    "Merge",
    "News",
    "Orchestrator",
    "PlaitError",
    "Plan",
    "Planner",
    "Plugin",
    "Policy",
    "Question",
    "Ref",
    "Request",
    "Sampling",
    "Step",
    "StepNews",
    "Task",
    "TextNews",
    "Think",
    "Tool",
    "Verdict",
    "Worker",
    "__version__",
    "tool",
]

__version__ = "0.1.0"

_HOMES = {
    "Merge": ".core.base",
    "Planner": ".core.base",
    "Policy": ".core.base",
    "Task": ".core.base",
    "Verdict": ".core.base",
    "Worker": ".core.base",
    "PlaitError": ".core.errors",
    "Budget": ".core.ir",
    "Call": ".core.ir",
    "Join": ".core.ir",
    "Plan": ".core.ir",
    "Plugin": ".core.ir",
    "Ref": ".core.ir",
    "Request": ".core.ir",
    "Sampling": ".core.ir",
    "Step": ".core.ir",
    "Think": ".core.ir",
    "Tool": ".core.tool",
    "tool": ".core.tool",
    "Context": ".core.context",
    "Question": ".core.context",
    "Answer": ".runtime.answer",
    "AskNews": ".runtime.answer",
    "AnswerNews": ".runtime.answer",
    "News": ".runtime.answer",
    "StepNews": ".runtime.answer",
    "TextNews": ".runtime.answer",
    "AsyncOrchestrator": ".runtime.client",
    "Config": ".runtime.config",
    "Orchestrator": ".runtime.sync",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
