"""A tenant's daily allowance, as an account: runs reserve a part when they are admitted and settle when they end.

The reservations of running runs plus the usage of ended runs never exceed the limit, also for concurrent requests.
Usage may exceed it by one report per running run: if an engine reports several tokens together, plait stops the run
after that report. A run reserves its own maximum if the allowance has it. If not, it gets the remainder, and half of
the spare reservation of the run with the most spare; that run continues with a lower limit. When a run ends, its
unused reservation goes to the run that is furthest below its maximum. Example: the first run may use all 1000 of 1000
tokens; a second one that starts when the first has used 200 gets 400 of the remaining 800.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Literal

from plait.runtime.client.handle import Handle

_TURNS = 1000
"""Maximum number of turns of the loop to wait until a limit is in force."""


@dataclass(eq=False, slots=True)
class Holding:
    """What one run holds."""

    most: float
    """What it may use at most."""
    held: float
    handle: Handle | None = None


@dataclass(slots=True)
class Allowance:
    """The account of one limit of a tenant's day."""

    name: Literal["tokens", "cost"]
    holdings: list[Holding] = field(default_factory=list[Holding])

    @property
    def held(self) -> float:
        """The sum of the reservations of all running runs."""
        return sum(holding.held for holding in self.holdings)

    async def reserve(self, most: float, left: float) -> Holding | None:
        """Reserve up to `most` for a run and return the holding, or `None` if nothing is available. `left` is the
        day's unused allowance. Calls must not overlap."""
        amount = min(most, max(0.0, left - self.held))
        # What a run gives up is its own no more before the machine has taken its new limit.
        if amount < most and (donor := max(self.holdings, key=self._spare, default=None)) is not None:
            amount += await self._taken(donor, min(most - amount, (self._spare(donor) - amount) / 2))
        amount = self._whole(amount)
        if amount <= 0:
            return None
        self.holdings.append(Holding(most, amount))
        return self.holdings[-1]

    async def begun(self, holding: Holding, handle: Handle) -> None:
        """Take note of the run of a holding; returns when it has begun."""
        holding.handle = handle
        for _ in range(_TURNS):
            if handle.standing is not None or handle.finished.done():
                return
            await asyncio.sleep(0)

    def settle(self, holding: Holding, used: float) -> None:
        """Take note that a run has ended: what is over goes to the one that is shortest, if that asked for more."""
        if holding not in self.holdings:
            return
        self.holdings.remove(holding)
        over = self._whole(holding.held - used)
        short = [holding for holding in self.holdings if holding.held < holding.most and holding.handle is not None]
        if over <= 0 or not short:
            return
        one = min(short, key=self._spare)
        one.held = min(one.most, one.held + over)
        self._limit(one)

    def _spare(self, holding: Holding) -> float:
        """Return the part of a reservation that the run has neither used nor reserved for a running attempt."""
        standing = None if holding.handle is None else holding.handle.standing
        return -math.inf if standing is None else holding.held - standing.committed(self.name)

    async def _taken(self, donor: Holding, wanted: float) -> float:
        """Lower the limit of a run, and return the amount that this frees."""
        wanted, before = self._whole(wanted), donor.held
        if wanted <= 0 or donor.handle is None:
            return 0.0
        donor.held -= wanted
        self._limit(donor)
        for _ in range(_TURNS):
            standing = donor.handle.standing
            if standing is None:  # it is over: what it has used is not known yet
                break
            if standing.limit(self.name) == donor.held:
                # An attempt that began meanwhile, and cannot be cut, may have reserved more.
                donor.held = max(donor.held, min(before, standing.committed(self.name)))
                return before - donor.held
            await asyncio.sleep(0)
        donor.held = before
        return 0.0

    def _limit(self, holding: Holding) -> None:
        assert holding.handle is not None
        if not holding.handle.finished.done():
            holding.handle.limit(**{self.name: self._whole(holding.held)})

    def _whole(self, amount: float) -> float:
        return max(0, math.floor(amount)) if self.name == "tokens" and math.isfinite(amount) else amount
