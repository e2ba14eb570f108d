"""Planner `tree`: a search over partial solutions, one step of reasoning at a node."""

from __future__ import annotations

from plait.core.flow import Answerable, Context

from .grow import Growth
from .options import TreeOptions

__all__ = ["Tree"]


class Tree(TreeOptions):
    """Grows a tree of partial solutions: the model writes a node's step, a scorer says how promising it is, a search
    says which node gets the next child. The answers found are voted on, each with its score as weight.

    | part | option | plugins |
    |---|---|---|
    | who grows next | `search` | `best-first`, `stride`, `ets`, `mcts`, `lats`, `dfs`: no depth waits for another |
    | | | `beam`, `dvts`, `rebase`, `tot`, `particle`: rounds |
    | how promising | `scorer` | `function`, `logprob`, `tool`, `judge` |

    A node continues its parent token for token, so that the prefix is computed once. Nodes in equal states
    (`Task.state_key`) are merged. The seed of a child is made of its path, not of the order in which nodes end. When
    the budget ends, the answers found so far are voted on.
    """

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Grow the tree and vote."""
        return await Growth(self, ctx, ctx.brief.task.render(self.style)).answer()
