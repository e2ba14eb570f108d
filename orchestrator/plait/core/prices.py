"""What a model's tokens cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .result import Source, Sources, Usage, least_certain_source
from .values import Frozen

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MILLION = 1e6


class Price(Frozen):
    """Rates of one model, in any one currency. Tokens are per million.

    >>> Price(input=2.0, output=8.0).of(Usage(prompt=1000, completion=500))
    0.006
    """

    input: Rate = 0.0
    """Prompt tokens that no prefix cache held."""
    cached: Rate | None = None
    """Prompt tokens that one held; by default as `input`."""
    output: Rate = 0.0
    """Generated tokens."""
    hour: Rate = 0.0
    """An hour of one slot of the worker, for engines that are paid by time: what the engine costs an hour, divided by
    its slots."""

    def of(self, usage: Usage, seconds: float = 0.0) -> float:
        """Return the cost of an attempt from its usage and its duration in seconds."""
        cached = self.input if self.cached is None else self.cached
        tokens = (usage.prompt - usage.cached) * self.input + usage.cached * cached + usage.completion * self.output
        return tokens / MILLION + seconds * self.hour / 3600

    def source(self, sources: Sources) -> Source | None:
        """Return the source of a cost's counts. If the cached tokens are not reported, and have a price of their
        own, the cost is an estimate: what it is at most."""
        cheaper = self.cached not in (None, self.input)
        cached = "estimate" if cheaper and sources.cached == "unknown" else None
        return least_certain_source(sources.prompt, sources.completion, cached)
