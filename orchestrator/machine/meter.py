"""What a run has used so far."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.result import Usage


@dataclass(slots=True, eq=False)
class Meter:
    """Running sum of usage."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cancelled: int = 0
    cost: float = 0.0
    reused: int = 0
    uncounted: int = 0

    def add(self, usage: Usage, read: bool) -> None:
        """Add an attempt's usage; `read` is whether its tokens went into a step's value."""
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.completion += usage.completion
        self.cost += usage.cost
        self.reused += usage.reused
        self.uncounted += usage.uncounted
        if not read:
            self.cancelled += usage.completion

    def reuse(self, tokens: int) -> None:
        """Take note that tokens of an attempt that was given up went into a step's value after all."""
        self.cancelled -= tokens

    def usage(self) -> Usage:
        """Return the sum."""
        return Usage(
            prompt=self.prompt,
            cached=self.cached,
            completion=self.completion,
            cancelled=max(0, self.cancelled),
            cost=self.cost,
            reused=self.reused,
            uncounted=self.uncounted,
        )
