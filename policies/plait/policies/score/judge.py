"""Scorer `judge`: a model compares a node with its siblings, in both orders."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.declarations import Fidelity
from plait.core.flow import Context, Trajectory
from plait.core.sampling import StructuredOutput
from plait.core.search import Scorer, SearchNode
from plait.core.vocabulary import Count

__all__ = ["Judge"]

_LETTERS = StructuredOutput(kind="choice", spec=["A", "B"], required=False)
PROMPT = """{question}

Two attempts at this, so far:

A:
{a}

B:
{b}

Which is closer to a right answer? Reply with A or B.
"""


class Judge(WithCallConfigs, Scorer):
    """The share of comparisons with earlier siblings that a node wins, each made in both orders, since judges favour a
    place (ToolLLM's ranking, arXiv 2307.16789). A pair on which the orders disagree is a draw; one that is not decided
    in both does not count. With no sibling to compare: 0.5.
    """

    fidelity = Fidelity("variant", "one comparison with siblings, in both orders", paper="2307.16789")

    against: Count = Field(default=2, ge=1, description="Most siblings to compare with, the latest ones.")
    judge: Annotated[CallConfig, Uses("question", "a", "b")] = Field(
        default=CallConfig(max_tokens=8, form="choice"),
        description="Asks for the better. Its template has `{question}`, `{a}` and `{b}`. `form=choice`: an engine "
        "that can allows nothing but A or B.",
    )

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return (wins + half the draws) / pairs."""
        siblings = [] if node.parent is None else node.parent.children
        # A sibling without text is still being written.
        others = [other for other in siblings if other is not node and other.step]
        others = [other for other in others if other.outcome not in ("dead", "merged")][-self.against :]
        if not others:
            return 0.5
        asked = [self._ask(ctx, question, *pair) for other in others for pair in ((node, other), (other, node))]
        # All are asked before the first is waited for, so they run together.
        replies = [await call for call in asked]
        votes = [_read_verdict(line.text) for line in replies]
        pairs = [pair for pair in zip(votes[::2], votes[1::2], strict=True) if None not in pair]
        wins = sum((first == "A") + (second == "B") for first, second in pairs)
        return wins / (2 * len(pairs)) if pairs else None

    def _ask(self, ctx: Context, question: str, a: SearchNode, b: SearchNode) -> Trajectory:
        asked = self.judge.text(PROMPT, question=question, a=a.text, b=b.text)
        form = _LETTERS if self.judge.form == "choice" else self.judge.form
        return ctx.think(asked, self.judge, label="judge", form=form)


def _read_verdict(text: str) -> Literal["A", "B"] | None:
    for letter in text.strip().upper()[:1]:
        if letter in ("A", "B"):
            return letter
    return None
