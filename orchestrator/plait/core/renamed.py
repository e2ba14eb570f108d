"""Public names that have changed: old to new. An old one works for one minor version, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar

REMOVED_IN = "0.3"
P = ParamSpec("P")
T = TypeVar("T")

CLASSES = {
    "AnswerNews": "RunEnded",
    "AskNews": "ApprovalRequested",
    "Brief": "PlanningContext",
    "Call": "ToolCall",
    "Hold": "Defer",
    "Line": "Trajectory",
    "News": "RunEvent",
    "Place": "Pin",
    "Prompt": "CallConfig",
    "StepNews": "StepEvent",
    "TextNews": "TextDelta",
    "Think": "ModelCall",
    "Wake": "ReviewAt",
}
"""Names of `plait`, `plait.core` and `plait.planning`."""
WORDS: dict[str, tuple[str, ...]] = {
    "bound": ("default_token_limit",),
    "by": ("criterion",),
    "conclude": ("answer_from",),
    "into": ("candidates", "planners"),
    "least": ("min_branches",),
    "most": ("max_branches",),
    "on_unknown": ("on_uncertain_side_effect",),
    "reads": ("max_input_tokens",),
    "settle": ("stop_on_verified",),
    "share": ("fairness_group",),
    "shown": ("max_tools", "max_prompt_items"),
    "tolerate": ("on_failure",),
    "weight": ("fairness_weight",),
    "whole": ("stream_above_tokens",),
}
"""Renamed options of plugins, settings, and fields of requests and joins. Of several new names, the existing one
counts."""
PLUGINS: dict[str, dict[str, str]] = {
    "merge alike": {"groups": "grouped"},
    "merge best-scored": {"scorer": "function"},
    "merge by-saturation": {"tokens": "most_tokens", "strategies": "wordings"},
    "merge distinct": {"pairs": "beginnings"},
    "merge equivalent": {"groups": "grouped", "most": "max_prompt_items"},
    "merge judged": {"entries": "marks"},
    "merge observations": {"text": "written"},
    "merge posterior": {"temperature": "vote_temperature"},
    "merge runtime": {
        "each": "per_sequence",
        "latency": "within",
        "quantile": "confidence",
        "share": "done_share",
        "tokens": "most_tokens",
    },
    "merge scratchpad": {"entries": "actions", "limit": "observation_chars"},
    "merge splice": {"entries": "places"},
    "merge stitch": {"entries": "parts"},
    "merge tool-majority": {"value": "gives"},
    "planner route": {"candidates": "planners"},
    "policy adaptive-consistency": {"least": "min_votes"},
    "policy affinity": {"least": "cached_tokens"},
    "policy cges": {"least": "min_votes", "temperature": "vote_temperature", "threshold": "confidence"},
    "policy confident": {"floor": "threshold"},
    "policy deepconf": {"wait": "hold"},
    "policy deepconf-consensus": {"warmup": "min_votes"},
    "policy futility": {"epsilon": "chance"},
    "policy gang": {"lead": "leader", "share": "expected"},
    "policy hedge": {"least": "min_ended"},
    "policy redundant": {"judge": "criterion"},
    "policy saturation": {"least": "min_votes"},
    "policy semantic-entropy": {"least": "min_votes", "threshold": "entropy"},
    "policy waves": {"width": "n"},
    "scorer logprob": {"along": "over"},
    "scorer reward-model": {"name": "tool"},
    "scorer tool": {"name": "tool"},
    "search ets": {"budget": "per_depth", "style": "variant", "temperature": "reward_temperature"},
    "search lats": {"alpha": "growth"},
    "search mcts": {"alpha": "growth"},
    "search particle": {"particles": "n", "temperature": "reward_temperature"},
    "search rebase": {"budget": "per_depth", "temperature": "reward_temperature"},
    "search stride": {"budget": "per_depth", "temperature": "reward_temperature"},
    "task plain": {"answer": "where"},
    "task sums": {"level": "skill"},
    "worker http": {"form": "endpoint"},
}
"""Further options by kind and name of the plugin: their old names have other meanings elsewhere."""


def warn(old: str, new: str, depth: int = 3) -> None:
    """Warn that a name has changed, at the caller `depth` frames up."""
    message = f"{old} is deprecated and will be removed in plait {REMOVED_IN}: write {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=depth)


def class_name(module: str, name: str) -> str | None:
    """Return the new name of a class, with a warning; `None` for a name that has not changed."""
    new = CLASSES.get(name)
    if new is not None:
        warn(f"{module}.{name}", f"{module}.{new}", 4)
    return new


def current(
    given: Mapping[str, T], takes: Collection[str], subject: str = "", own: Mapping[str, str] | None = None
) -> dict[str, T]:
    """Return fields under their current names.

    Args:
        given: fields, some perhaps under old names. takes: the current names. subject: subject of the warning; empty
        for recorded data, which causes no warning. own: old to new names of this one plugin, which go before `WORDS`.
    """
    fields: dict[str, T] = {}
    for name, value in given.items():
        new = name
        if name not in takes:
            new = (own or {}).get(name) or next((word for word in WORDS.get(name, ()) if word in takes), name)
        if new != name and new in given:
            new = name  # both names are given: the old name is rejected as unknown
        if new != name and subject:
            warn(f"{subject}: `{name}`", f"`{new}`", 4)
        fields[new] = value
    return fields


def accept(**old: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a function whose parameters have changed their names: `@accept(anyway="force")`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> T:
            if not named.keys().isdisjoint(old):
                for name in old.keys() & named.keys():
                    warn(f"{function.__name__}({name}=)", f"{old[name]}=")
                    named[old[name]] = named.pop(name)
            return function(*args, **named)

        return call

    return decorate
