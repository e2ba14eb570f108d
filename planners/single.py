"""Planner `single`: one model call, one line of reasoning. The baseline of everything else.

It does not know what the task is, nor whether the answer is right.
"""

from __future__ import annotations

from pydantic import Field

from plait.core.interfaces import Brief, Planner
from plait.core.plan import Plan, Sampling, Step, Text, Think
from plait.core.task import Style

from ._shared.seeds import derive

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
        return Plan(steps=(Step(name="think", op=op, label="think"),), output="think")
