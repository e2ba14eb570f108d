"""Helpers for planners of your own: prompts, seeds, one call of a model, a value passed on, readers of results."""

from .core.planning import CallOptions, OnBranches, OnResult, call_model, derive, pass_through
from .core.prompt import Prompt, Uses

__all__ = ["CallOptions", "OnBranches", "OnResult", "Prompt", "Uses", "call_model", "derive", "pass_through"]
