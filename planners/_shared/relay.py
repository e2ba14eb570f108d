"""One text that two models write in turns, piece by piece: for planners with a draft model and a target model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from plait.core.awaited import Asked, Line, StepFailed
from plait.core.flow import Context
from plait.core.plan import Plugin
from plait.core.search import Node, Scorer

__all__ = ["Piece", "Relay"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the text."""

    line: Line
    model: str | None
    """Who wrote it."""
    ended: bool
    """It is the last one."""

    @property
    def text(self) -> str:
        """What it adds to the text."""
        return self.line.text


@dataclass(slots=True)
class Relay:
    """Asks for pieces and scores them. Each piece is asked for with all those before it, so one that is rejected leaves
    no trace."""

    ctx: Context
    question: str
    scorer: Plugin
    target: str | None
    judged: int = 0
    """Pieces that were scored."""

    async def write(self, done: Sequence[Piece], model: str | None, asked: Asked) -> Piece:
        """Return the piece after `done` by a model. It goes on token for token where the same model wrote the piece
        before; else it reads the text so far."""
        asked = {**asked, "model": model}
        text = "".join(each.text for each in done)
        if done and done[-1].model == model:
            line = done[-1].line.think(**asked)
        elif text and self.ctx.brief.task.chat():
            line = self.ctx.think(self.question, **{**asked, "chat": True, "begin": text})
        else:
            line = self.ctx.think([self.question, text] if text else self.question, **asked)
        await line
        ended = line.finished or not line.tokens
        return Piece(line, model, ended)

    async def score(self, pieces: Sequence[Piece]) -> float | None:
        """Return how promising the last of these pieces is, in [0, 1]; `None` if nobody can tell. A scorer that asks a
        model asks the target, unless its options name another."""
        spec = self.scorer
        if spec.name in ("model", "judge") and "model" not in spec.options and self.target is not None:
            spec = spec.model_copy(update={"options": {**spec.options, "model": self.target}})
        scorer = cast("Scorer", self.ctx.brief.plugin("scorer", spec))
        node = Node("n")
        for number, each in enumerate(pieces, 1):
            line = each.line if scorer.logprobs else None  # a judge reads the text: another model wrote the line
            node = Node(f"n.{number}", node, number, 1, step=each.text, tokens=each.line.tokens, line=line)
        self.judged += 1
        try:
            return await scorer.score(self.ctx, self.question, node)
        except StepFailed:
            return None

    @property
    def logprobs(self) -> int:
        """`Sampling.logprobs` that the pieces need for the scorer."""
        return int(cast("Scorer", self.ctx.brief.plugin("scorer", self.scorer)).logprobs)
