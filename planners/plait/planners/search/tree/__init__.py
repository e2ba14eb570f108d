"""Planner `tree`: a search over partial solutions, one step of reasoning at a node."""

from __future__ import annotations

from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context

from .calls import tool_instructions
from .growth import Growth
from .options import TreeOptions

__all__ = ["Tree"]


class Tree(TreeOptions):
    """Grows a tree of partial solutions: the model writes a node's step, a scorer says how promising it is, a search
    says which node gets the next child. The answers found are voted on, each with its score as weight.

    | part | option | plugins |
    |---|---|---|
    | who grows next | `search` | `best-first`, `stride`, `ets`, `mcts`, `lats`, `dfs`: no depth waits for another |
    | | | `beam`, `dvts`, `rebase`, `tot`, `particle`: rounds |
    | how promising | `scorer` | `function`, `model`, `logprob`, `tool`, `reward-model`, `judge` |

    A node continues its parent token for token, so that the prefix is computed once. Nodes in equal states
    (`Task.state_key`) are merged. The seed of a child is made of its path, not of the order in which nodes end. When
    the budget ends, the answers found so far are voted on.

    After Tree of Thoughts (arXiv 2305.10601), REBASE (arXiv 2408.00724), ETS (arXiv 2502.13575), LATS (arXiv
    2310.04406), DFSDT (arXiv 2307.16789) and particle filtering (arXiv 2502.01618). Differs from all of them: no depth
    waits for another unless the search requires it, equal states are merged, and no search sees the grader. The nodes
    that are grown side by side race: which is chosen next depends on what has ended, so with `n` above one a seed does
    not fix the answer. Defaults: best-first by `Task.value`, 16 nodes at a time, 256 in all.
    """

    fidelity = Fidelity("variant", "as its searches say, each for itself", paper="2305.10601")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Grow the tree and vote."""
        question = ctx.brief.task.render(self.style)
        told = tool_instructions(ctx.brief.tools, self.until, self.give_up) if self.step.form == "calls" else ""
        return await Growth(self, ctx, told + question).answer()
