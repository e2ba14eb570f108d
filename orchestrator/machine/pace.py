"""How many seconds a worker takes for a token, by how many attempts it has: learned from those that ended.

Engines decode all their sequences together, each the slower the more there are. Over the range that a worker works in,
seconds per token are about a line in the number of sequences; a line is fitted whose older points count less and less.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEEP = 0.98
"""What a point counts when one more has come, of what it counted before: half after 34."""
_LEAST = 8
"""Tokens: an attempt with fewer says more about its prompt than about decoding."""
_PRIOR = 4.0
"""Variance of the number of attempts at which the fitted slope counts as much as the assumed one."""


@dataclass(slots=True)
class Pace:
    """Sums over the attempts that ended on one worker."""

    n: float = 0.0
    beside: float = 0.0
    seconds: float = 0.0
    square: float = 0.0
    product: float = 0.0

    def add(self, beside: float, seconds: float, tokens: int) -> None:
        """Count an attempt that took so many seconds for its tokens, with `beside` attempts on the worker on average,
        itself included."""
        if tokens < _LEAST:
            return
        each = seconds / tokens
        self.n = self.n * _KEEP + 1.0
        self.beside = self.beside * _KEEP + beside
        self.seconds = self.seconds * _KEEP + each
        self.square = self.square * _KEEP + beside * beside
        self.product = self.product * _KEEP + beside * each

    def at(self, attempts: int) -> float | None:
        """Return the seconds that a token is expected to take with so many attempts; `None` before any has ended.

        Where all points lie close together the slope is taken to be half of what proportionality would give.
        """
        if not self.n:
            return None
        beside, seconds = self.beside / self.n, self.seconds / self.n
        variance = max(0.0, self.square / self.n - beside * beside)
        covariance = self.product / self.n - beside * seconds
        assumed = seconds / (2.0 * max(1.0, beside))
        slope = max(0.0, covariance + _PRIOR * assumed) / (variance + _PRIOR)
        return max(0.1 * seconds, seconds + slope * (attempts - beside))
