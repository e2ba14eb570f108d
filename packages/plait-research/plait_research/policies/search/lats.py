"""Search `lats`: Monte Carlo tree search with written reflections on failures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.declarations import Fidelity
from plait.core.flow import Context
from plait.core.search import Frontier, SearchNode, SearchTree
from plait.core.step_handles import StepFailed
from plait.core.vocabulary import Count
from plait.policies.search.mcts import Mcts, Visits

__all__ = ["Lats"]

_REFLECT = "\n\nThis attempt failed. In two or three sentences: what went wrong, and what should be done otherwise?\n"


class Lats(WithCallConfigs, Mcts):
    """`mcts` with reflections (arXiv 2310.04406): if an answer scores below `fail`, the model writes two or three
    sentences on what to change. The prompts of later steps show them after the shared prefix.

    Differs: the scorer alone finds failures; the authors' code uses the grader. Nodes are kept, and run in parallel.
    """

    fidelity = Fidelity("variant", "the scorer describes the failure, not the grader, in parallel", paper="2310.04406")

    fail: float = Field(default=0.5, ge=0, le=1, description="Score below which an answer counts as failed.")
    reflections: Count = Field(default=3, ge=0, description="Most reflections, all different.")
    summary: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(max_tokens=128), description="A reflection. Its template is put behind the failed attempt."
    )

    def frontier(self, tree: SearchTree) -> Frontier:
        """Return the statistics and reflections of one run."""
        return _Reflecting(tree, self)


class _Reflecting(Visits):
    def __init__(self, tree: SearchTree, options: Lats) -> None:
        super().__init__(tree, options)
        self._lats = options
        self._said: dict[str, None] = {}
        self._asked = 0

    async def learn(self, ctx: Context, question: str, node: SearchNode) -> None:
        failed = node.outcome == "answer" and node.score is not None and node.score < self._lats.fail
        if not failed or self._asked >= self._lats.reflections:
            return
        self._asked += 1
        asked = self._lats.summary
        pieces = [question, "\n", node.text, asked.text(_REFLECT)]
        try:
            reflection = await ctx.think(pieces, asked, name=f"{node.name}-reflection", label="reflection")
        except StepFailed:
            return
        if reflection.text.strip():
            self._said[reflection.text.strip()] = None

    def say(self, node: SearchNode) -> str:
        if not self._said:
            return ""
        return "\nLearned from earlier attempts:\n" + "".join(f"- {reflection}\n" for reflection in self._said)
