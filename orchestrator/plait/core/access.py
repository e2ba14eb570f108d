"""What an option of a plugin may cost or touch, declared beside its type.

    chunks: Annotated[int, BranchCount()] = 4
    separator: Annotated[str, Free()] = ", "

A server reads it (`plait.apps.common.outside`) before it makes a plugin for a request from outside. The words of
`plait.core.vocabulary` and `Prompt` have it already, and `bool`, `float` and `Literal` need none: they can name nothing
and count nothing. Every other option without one is refused from outside, also in the options of other plugins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "Access",
    "BranchCount",
    "CodeAddress",
    "Free",
    "ModelName",
    "PlanSpec",
    "PluginOf",
    "ServerFile",
    "TokenCount",
    "ToolName",
]


@dataclass(frozen=True)
class Access:
    """Base of what is declared; `check` names how a request's value is checked."""

    check: ClassVar[str]


class BranchCount(Access):
    """A count of branches, rounds, calls or steps, of a list the sum: the server's `width` is the most."""

    check = "branches"


class TokenCount(Access):
    """A count of tokens or characters: the budget of the run limits it."""

    check = "free"


class Free(Access):
    """Text, data or a number that affects the run of the caller alone and names nothing of the server's. Covers all
    fields of a model, too."""

    check = "free"


class CodeAddress(Access):
    """The address of a Python function: `plait.core.addresses` imports only what the operator allowed."""

    check = "free"


class ServerFile(Access):
    """A path on the server: refused."""

    check = "file"


class ToolName(Access):
    """The name of a tool that is called."""

    check = "tool"


class ModelName(Access):
    """The name of a model, or a list of them."""

    check = "model"


class PlanSpec(Access):
    """A plan, as JSON: each of its steps is checked."""

    check = "plan"


@dataclass(frozen=True)
class PluginOf(Access):
    """A plugin of a kind (`planner`, `merge`, `search`, `scorer`): its options are checked like those of this one."""

    kind: str

    @property
    def check(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The kind, which names the check."""
        return self.kind
