"""RequestAdmission: how many requests a tenant may have in the server, and whose request is parsed next.

Slots are shared by weight, but parsing a request and starting its run takes milliseconds of the event loop, before any
slot is asked for. Without turns, a thousand requests of one tenant would be everybody's wait. So a request is counted
before its body is read (beyond the tenant's part it gets 429 at once), and it is parsed and started in a turn: one turn
begins in each iteration of the event loop, a tenant has one at a time, and weights decide whose is next.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal

from plait.runtime.client.handle import Handle

from .errors import ApiError

# A tenant's daily allowance, as an account: runs reserve a part when they are admitted and settle when they end.
#
# The reservations of running runs plus the usage of ended runs never exceed the limit, also for concurrent requests.
# Usage may exceed it by one report per running run: if an engine reports several tokens together, plait stops the run
# after that report. A run reserves its own maximum if the allowance has it. If not, it gets the remainder, and half of
# the spare reservation of the run with the most spare; that run continues with a lower limit. When a run ends, its
# unused reservation goes to the run that is furthest below its maximum. Example: the first run may use all 1000 of 1000
# tokens; a second one that starts when the first has used 200 gets 400 of the remaining 800.

_TURNS = 1000
"""Maximum number of turns of the loop to wait until a limit is in force."""


@dataclass(eq=False, slots=True)
class Holding:
    """What one run holds."""

    most: float
    """The most that it may use."""
    held: float
    handle: Handle | None = None


@dataclass(slots=True)
class Allowance:
    """The account of one limit of a tenant's day."""

    name: Literal["tokens", "cost"]
    limit: float = 0.0
    """Of one day."""
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


RETRY_AFTER_S = 1
PLACE = "plait.place"
"""The `Place` of a request, in its scope."""


@dataclass(eq=False, slots=True)
class TenantLoad:
    """What one tenant has in the server."""

    weight: float
    requests: int = 0
    """Requests that are being answered."""
    body_bytes: int = 0
    """Bytes of the bodies of its requests and runs that have not ended."""


@dataclass(eq=False, slots=True)
class BodyBytes:
    """The bytes of one request's body, counted for its tenant until the request and all its runs have ended."""

    tenant: TenantLoad
    limit: int
    """Maximum number of bytes that the tenant may have in memory in bodies."""
    count: int = 0
    holders: int = 1

    def add(self, count: int) -> None:
        """Count more bytes. Raises `ApiError` (429) beyond the limit."""
        if self.tenant.body_bytes + count > self.limit:
            raise busy(f"the bodies of your running requests take more than {self.limit} bytes")
        self.count += count
        self.tenant.body_bytes += count

    def hold(self) -> None:
        """Count the bytes until one more `release`."""
        self.holders += 1

    def release(self) -> None:
        """End one holder; the last one frees the bytes."""
        self.holders -= 1
        if not self.holders:
            self.tenant.body_bytes -= self.count


@dataclass(eq=False, slots=True)
class _Queue:
    """The requests of one tenant that wait for a turn."""

    weight: float
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])
    active: bool = False
    clock: float = 0.0
    """TenantTurns it has had, divided by its weight: the tenant whose clock is least is next."""


@dataclass(eq=False, slots=True)
class Place:
    """What one request has been admitted with."""

    tenant: TenantLoad
    body: BodyBytes
    admission: RequestAdmission

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Wait for a turn of its tenant, and have it."""
        return self.admission.turn(self.tenant)


class TenantTurns:
    """TenantTurns of tenants, by weight."""

    def __init__(self) -> None:
        self._queues: dict[TenantLoad, _Queue] = {}
        self._clock = 0.0
        """The clock of the last turn: a tenant that was idle starts from here, and saves nothing up."""
        self._pumping = False

    @contextlib.asynccontextmanager
    async def turn(self, tenant: TenantLoad) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = _Queue(tenant.weight)
        if self._pumping or queue.active:
            turn = asyncio.get_running_loop().create_future()
            queue.waiting.append(turn)
            self._pump_later()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # the turn was given in the iteration that cancels us
                    self._end(queue)
                raise
        else:
            self._begin(queue)
            self._pump_later()
        try:
            yield
        finally:
            self._end(queue)

    def _begin(self, queue: _Queue) -> None:
        queue.active = True
        self._clock = max(queue.clock, self._clock)
        queue.clock = self._clock + 1.0 / queue.weight

    def _end(self, queue: _Queue) -> None:
        queue.active = False
        self._pump_later()

    def _pump_later(self) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Give one turn, then let the loop do everything else that is ready."""
        self._pumping = False
        ready: list[_Queue] = []
        for queue in self._queues.values():
            while queue.waiting and queue.waiting[0].done():  # cancelled while it waited
                queue.waiting.popleft()
            if queue.waiting and not queue.active:
                ready.append(queue)
        if not ready:
            return
        queue = min(ready, key=lambda queue: max(queue.clock, self._clock))
        self._begin(queue)
        queue.waiting.popleft().set_result(None)
        self._pump_later()


class RequestAdmission(TenantTurns):
    """Counts the requests of each tenant, and gives turns to those that are parsed and started."""

    def __init__(self, requests: int, body_bytes: int) -> None:
        super().__init__()
        self._most, self._body_bytes = requests, body_bytes
        self.reads = TenantTurns()
        """TenantTurns of requests that read stored objects and journals on threads: there are few threads."""

    @contextlib.contextmanager
    def request(self, tenant: TenantLoad) -> Iterator[Place]:
        """Count a request until it is answered. Raises `ApiError` (429) for one too many of the tenant."""
        if tenant.requests >= self._most:
            raise busy(f"{tenant.requests} of your requests are being answered, which is the limit")
        tenant.requests += 1
        body = BodyBytes(tenant, self._body_bytes)
        try:
            yield Place(tenant, body, self)
        finally:
            tenant.requests -= 1
            body.release()


def busy(message: str) -> ApiError:
    """Return the error (429) for a tenant that has too much in the server."""
    return ApiError(429, f"{message}: retry in {RETRY_AFTER_S} s", code="rate_limit_exceeded", retry=True,
                    headers={"retry-after": str(RETRY_AFTER_S)})  # fmt: skip
