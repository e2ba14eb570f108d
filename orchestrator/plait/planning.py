"""Helpers for planners of your own: prompts, seeds, one call of a model, a value passed on, readers of results."""

from .core.call_config import CallConfig, Uses
from .core.planning import CallOptions, OnBranches, OnResult, call_model, derive, pass_through

__all__ = ["CallConfig", "CallOptions", "OnBranches", "OnResult", "Uses", "call_model", "derive", "pass_through"]
