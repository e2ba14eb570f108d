"""One text that two models write in turns, piece by piece: for planners with a draft model and a target model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pydantic import JsonValue

from plait.core.call_config import CallConfig
from plait.core.flow import Context
from plait.core.ops import Plugin
from plait.core.planning import TrajectoryOptions
from plait.core.search import Scorer, SearchNode
from plait.core.step_handles import StepFailed, Trajectory


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the text."""

    line: Trajectory
    model: str | None
    """Who wrote it."""
    whole: str
    """The text up to its end."""
    blank: bool
    """It has nothing that can be seen."""
    ended: bool
    """It is the last one."""
    number: int


@dataclass(slots=True)
class Relay:
    """Asks for pieces and scores them. Each piece is asked for with all those before it, so one that is rejected leaves
    no trace."""

    ctx: Context
    question: str
    scorer: Plugin
    target: str | None
    """A scorer that asks a model asks this one, unless its options name another."""

    async def write(self, before: Piece | None, prompt: CallConfig, label: str) -> Piece:
        """Return the piece behind another by the prompt's model. It goes on token for token where the same model wrote
        the other; else it reads the text so far. The text ends where the model ends it, where the task finds it
        complete, or with a second blank piece in a row."""
        model, logprobs = prompt.model, max(self.logprobs, prompt.logprobs or 0)
        asked: TrajectoryOptions = {"label": label, "logprobs": logprobs}
        pieces = prompt.parts("{question}", question=self.question)
        text = "" if before is None else before.whole
        if before is not None and before.model == model:
            line = before.line.think((), prompt, **asked)
        elif text and self.ctx.brief.task.chat():
            line = self.ctx.think(pieces, prompt, **{**asked, "chat": True, "begin": text})
        else:
            line = self.ctx.think([*pieces, text] if text else pieces, prompt, **asked)
        await line
        blank = not line.text.strip()
        text += line.text
        ended = line.finished or not line.tokens or (blank and before is not None and before.blank)
        ended = ended or self.ctx.brief.task.complete(text) is True
        return Piece(line, model, text, blank, ended, 1 if before is None else before.number + 1)

    async def score(self, piece: Piece) -> float | None:
        """Return how promising the text is with this piece, in [0, 1]; `None` if nobody can tell."""
        spec = self.scorer
        if spec.name in ("model", "judge") and self.target is not None:
            given = spec.options.get("judge")
            judge: JsonValue = {"model": self.target, **(given if isinstance(given, dict) else {})}
            spec = spec.model_copy(update={"options": {**spec.options, "judge": judge}})
        scorer = cast("Scorer", self.ctx.brief.plugin("scorer", spec))
        line = piece.line if scorer.logprobs else None  # a judge reads the text: another model wrote the line
        before = SearchNode("n", step=piece.whole.removesuffix(piece.line.text))
        node = SearchNode(
            f"n.{piece.number}", before, piece.number, tokens=piece.line.tokens, step=piece.line.text, line=line
        )
        try:
            return await scorer.score(self.ctx, self.question, node)
        except StepFailed:
            return None

    @property
    def logprobs(self) -> int:
        """`Sampling.logprobs` that the pieces need for the scorer."""
        return int(cast("Scorer", self.ctx.brief.plugin("scorer", self.scorer)).logprobs)
