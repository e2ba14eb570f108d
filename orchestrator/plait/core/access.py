"""What an option of a plugin may cost or touch, declared beside its type.

    chunks: Annotated[int, BranchCount()] = 4  # or `Count`, of `plait.core.vocabulary`
    separator: Annotated[str, Free()] = ", "  # or `FreeText`

A server reads it (`plait.apps.common.outside`) before it makes a plugin for a request from outside. The words of
`plait.core.vocabulary` and `Prompt` have it already, and `bool`, `float` and `Literal` need none: they can name nothing
and count nothing. Every other option without one is refused from outside, also in the options of other plugins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

__all__ = [
    "Access",
    "BranchCount",
    "CodeAddress",
    "Free",
    "ModelName",
    "PlanSpec",
    "ServerFile",
    "TokenCount",
    "ToolName",
]


@dataclass(frozen=True, slots=True)
class Access:
    """What an option costs or touches. `Access("merge")`, or another kind of plugin: a plugin whose own options are
    checked."""

    check: str
    """The name of the check, as `plait.apps.common.outside.Check` lists them."""


BranchCount = partial(Access, "branches")
"""A count of branches, rounds, calls or steps, of a list their sum: the server's `width` is the most."""
TokenCount = partial(Access, "free")
"""A count of tokens or characters: the budget of the run limits it."""
Free = partial(Access, "free")
"""Text, data or a number that affects the run of the caller alone; on a model it covers all fields of this."""
CodeAddress = partial(Access, "free")
"""The address of a Python function: `plait.core.addresses` imports only what the operator allowed."""
ServerFile = partial(Access, "file")
"""A path on the server: refused."""
ToolName = partial(Access, "tool")
"""The name of a tool."""
ModelName = partial(Access, "model")
"""The name of a model, or a list of them."""
PlanSpec = partial(Access, "plan")
"""A plan in JSON: each of its steps is checked."""
