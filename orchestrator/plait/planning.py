"""Helpers for planners of your own: prompts, seeds, one call of a model, a value passed on, readers of results."""

from .core.call_config import CallConfig, Uses
from .core.planning import CallOptions, OnBranches, OnResult, call_model, derive, pass_through

__all__ = ["CallConfig", "CallOptions", "OnBranches", "OnResult", "Uses", "call_model", "derive", "pass_through"]


def __getattr__(name: str) -> object:
    from .core.renamed import class_name

    new = class_name("plait.planning", name)
    if new not in __all__:
        raise AttributeError(f"module 'plait.planning' has no attribute {name!r}")
    return globals()[new]
