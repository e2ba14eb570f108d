"""What a plugin declares about itself: the class its source and record, each option what it may cost or touch.

    chunks: Annotated[int, BranchCount()] = 4  # or `Count`, of `plait.core.vocabulary`
    separator: Annotated[str, Free()] = ", "  # or `FreeText`

A server reads what options declare (`plait_server.outside`) before it makes a plugin for a request from outside.
The types of `plait.core.vocabulary` and `CallConfig` declare it. `bool`, `float` and `Literal` need no declaration,
because they can neither name nor count anything. Any other option without one is refused from outside, at every
nesting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from .values import Frozen


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How near a published method is to its authors' code."""

    kind: Literal["exact", "variant", "idea", "formula"]
    differs: str = ""
    """What differs; a variant must say it."""
    oracles: tuple[str, ...] = ()
    """Files in `tests/oracles` that hold the authors' results."""
    paper: str = ""
    """Number at arXiv."""


class PluginModel(Frozen):
    """Base of plugins that are made of options alone."""

    fidelity: ClassVar[Fidelity | None] = None
    """`None`: not a published method."""
    lost_in: ClassVar[tuple[str, ...]] = ()
    """Experiments that measured the plugin, if it lost in all of them. `plait serve` does not offer such a plugin."""
    cost_exponent: ClassVar[float] = 1.0
    """Work grows with this power of the number of branches; `tests/complexity` measures it."""


@dataclass(frozen=True, slots=True)
class Access:
    """What an option costs or touches. `Access("merge")`, or another kind of plugin: a plugin whose own options are
    checked."""

    check: str
    """The name of the check, as `plait_server.outside.Check` lists them."""


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
