"""Planner `single`: one model call, one line of reasoning. The baseline of everything else."""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Brief, Planner
from plait.core.ops import Sampling, Text, Think
from plait.core.plan import Plan, Step
from plait.core.task import Style

from .._shared.seeds import derive
from .._shared.steps import begun

__all__ = ["Single"]


class Single(Planner):
    """Put the task to the model once and take what it writes.

    Nobody's method: what the others differ from. Defaults: greedy, 512 tokens.
    """

    style: Style = "serial"
    """Mode of answering that the prompt asks for: `serial` (reasoning first) or `direct` (the answer at once)."""
    width: int = Field(default=8, ge=1)
    """Branches that one line of reasoning may try, where the task's prompt says so."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens to generate."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the most likely tokens that together have this probability."""
    begin: str = ""
    """Text that the model's turn begins with. `no-thinking`: an ended block of thoughts, for a model that thinks before
    it answers (NoThinking, arXiv 2504.09858); where the chat template opens the block itself, give the text that ends
    it: `Okay, I think I have finished thinking.\\n</think>\\n\\n`."""
    stream: bool = True
    """Send the text while it is being written."""

    def start(self, brief: Brief) -> Plan:
        """Return a plan of one step, `think`."""
        op = Think(
            prompt=(Text(text=brief.task.render(self.style, self.width)),),
            chat=brief.task.chat(),
            sampling=Sampling(
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=derive(brief.request.seed, "single") if self.temperature else None,
            ),
            stream=self.stream,
        )
        return Plan(steps=(Step(name="think", op=begun(op, self.begin), label="think"),), output="think")
