"""Helpers for planners of your own: seeds, one call of a model, a value passed on, readers of results."""

from .core.planning import CallOptions, OnBranches, OnResult, call_model, derive, pass_through

__all__ = ["CallOptions", "OnBranches", "OnResult", "call_model", "derive", "pass_through"]
