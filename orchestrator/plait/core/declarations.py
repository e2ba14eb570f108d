"""A plugin's declarations: the source and record of its class, and the cost or access of each option.

    chunks: Annotated[int, BranchCount()] = 4  # or `Count`, of `plait.core.vocabulary`
    separator: Annotated[str, Free()] = ", "  # or `FreeText`

A server reads the options' declarations (`plait_server.outside`) before it creates a plugin for an external request.
The types of `plait.core.vocabulary` and `CallConfig` declare it. `bool`, `float` and `Literal` need no declaration,
because they can neither name nor count anything. A server rejects any other option without a declaration, at every
nesting level.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from .values import Frozen


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Fidelity of a published method to its authors' code."""

    kind: Literal["exact", "variant", "idea", "formula"]  # exact: an oracle holds it; formula: the paper's, without one
    differs: str = ""
    """Differences, required for a variant."""
    oracles: tuple[str, ...] = ()
    """Files in `tests/oracles` that hold the authors' results."""
    paper: str = ""
    """Number at arXiv."""


class PluginModel(Frozen):
    """Base of plugins that consist of options only."""

    fidelity: ClassVar[Fidelity | None] = None
    """`None`: not a published method."""
    lost_in: ClassVar[tuple[str, ...]] = ()
    """Experiments in which the plugin lost, if it won in none. `plait serve` does not offer such a plugin."""
    cost_exponent: ClassVar[float] = 1.0
    """Work grows with this power of the number of branches; `tests/complexity` measures it."""


@dataclass(frozen=True, slots=True)
class Access:
    """The cost or access of an option. `Access("merge")`, or another plugin kind: a plugin whose own options are
    checked."""

    check: str
    """The name of the check, as `plait_server.outside.Check` lists them."""


BranchCount = partial(Access, "branches")
"""A number of branches, rounds, calls or steps (for a list: the sum); the server's `width` is the maximum."""
TokenCount = partial(Access, "free")
"""A number of tokens or characters, limited by the run's budget."""
Free = partial(Access, "free")
"""Text, data or a number that affects only the caller's run; on a model, it covers all of the model's fields."""
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
