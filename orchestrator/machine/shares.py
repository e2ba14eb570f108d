"""What each run has been served, so that slots are divided fairly between runs.

A *share* is a run by itself, or all runs whose requests name it (`Request.share`). Of the shares with a step that could
start now, the one that has been served least goes first: a virtual token counter, as in "Fairness in serving large
language models" (Sheng et al., OSDI 2024). A share that comes to wait anew begins at no less than the least served of
those that wait, so that nobody saves up slots by being idle. What a share has been served is divided by its weight:
with weight 2 it gets twice the tokens.

Think steps are counted in tokens: two units for each that was generated and one for each prompt token that no cache
held, the paper's weights. Calls are counted by their number, apart from tokens, since other workers make them. An
attempt that runs counts as much as the share's attempts took on average, until it has ended.

The numbers that are added up are whole, and one sum is formed of them only when it is asked for: a replay that is told
of several reports as of one comes to the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.result import Usage

GENERATED = 2
"""Units of a token that was generated; a prompt token that was read counts one."""


@dataclass(slots=True, eq=False)
class Tally:
    """What a share has been served in one kind of step."""

    base: float = 0.0
    """Where it stood when it last came to wait."""
    served: int = 0
    """Units since then."""
    due: int = 0
    """Units that its running attempts are still expected to take."""
    ended: int = 0
    """Attempts that ended …"""
    units: int = 0
    """… and what they took."""
    weight: float = 1.0

    @property
    def counter(self) -> float:
        """What it has been served, in units for each unit of weight."""
        return self.base + self.served / self.weight

    @property
    def key(self) -> float:
        """The same, with what is due: the least goes first."""
        return self.base + (self.served + self.due) / self.weight

    def lift(self, least: float) -> None:
        """Begin to wait, beside others of which the least served stands at `least`."""
        if self.counter < least:
            self.base, self.served = least, 0

    def weigh(self, weight: float) -> None:
        """Take a new weight from here on."""
        if weight != self.weight:
            self.base, self.served, self.weight = self.counter, 0, weight

    def begin(self) -> int:
        """Count an attempt that begins; return the units that it is expected to take."""
        expected = max(1, self.units // self.ended) if self.ended else 1
        self.due += expected
        return expected

    def heard(self, tokens: int, due: int) -> int:
        """Count tokens that an attempt generated; return what is then left of the units that it was expected to
        take."""
        units = GENERATED * tokens
        self.served += units
        used = min(due, units)
        self.due -= used
        return due - used

    def end(self, usage: Usage, told: int, due: int) -> None:
        """Count the end of an attempt, of which `told` tokens have been counted and `due` units were still expected."""
        self.due -= due
        self.served += GENERATED * max(0, usage.completion - told) + max(0, usage.prompt - usage.cached)
        self.units += GENERATED * max(told, usage.completion) + max(0, usage.prompt - usage.cached)
        self.ended += 1


@dataclass(slots=True, eq=False)
class Share:
    """A run, or the runs that name it."""

    name: str
    number: int
    """Of its arrival: among equals the first goes first."""
    runs: int = 0
    """Those that are not over."""
    think: Tally = field(default_factory=Tally)
    call: Tally = field(default_factory=Tally)

    def weigh(self, weight: float) -> None:
        """Take a weight from here on."""
        self.think.weigh(weight)
        self.call.weigh(weight)
