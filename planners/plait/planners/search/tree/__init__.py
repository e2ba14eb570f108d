"""Planner `tree`: a search over partial solutions, one step of reasoning at a node."""

from __future__ import annotations

from plait.core.declarations import Fidelity
from plait.core.flow import Answerable, Context

from .calls import tool_instructions
from .growth import Growth
from .options import TreeOptions

__all__ = ["Tree"]


class Tree(TreeOptions):
    """Grows a tree of partial solutions: the model writes a node's step, a scorer rates the step, and a search chooses
    the node that gets the next child. A vote over the answers weighs each answer by its score.

    | part | option | plugins |
    |---|---|---|
    | who grows next | `search` | `best-first`, `stride`, `ets`, `mcts`, `lats`, `dfs`: no depth waits for another |
    | | | `beam`, `dvts`, `rebase`, `tot`, `particle`: rounds |
    | how promising | `scorer` | `function`, `model`, `logprob`, `tool`, `reward-model`, `judge` |

    A node continues its parent token for token, so that each prefix is computed once. Nodes in equal states
    (`Task.state_key`) are merged. The seed of a child depends on its path, not on the order in which nodes end. When
    the budget ends, the answers found so far vote.

    After Tree of Thoughts (arXiv 2305.10601), REBASE (arXiv 2408.00724), ETS (arXiv 2502.13575), LATS (arXiv
    2310.04406), DFSDT (arXiv 2307.16789) and particle filtering (arXiv 2502.01618). Differs from all of them: no depth
    waits for another unless the search requires it, equal states are merged, and no search sees the grader. Nodes that
    grow in parallel race: the next choice depends on the nodes that have ended, so a seed does not determine the answer
    if `n` is above one. Defaults: best-first by `Task.value`, 16 nodes at a time, 256 in total.
    """

    fidelity = Fidelity("variant", "as its searches say, each for itself", paper="2305.10601")

    async def run(self, ctx: Context, question: str) -> Answerable:
        """Grow the tree and vote."""
        question = ctx.brief.task.render(self.style)
        told = tool_instructions(ctx.brief.tools, self.until, self.give_up) if self.step.form == "calls" else ""
        return await Growth(self, ctx, told + question).answer()
