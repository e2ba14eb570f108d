"""Limits the requests at a server, waits where it asks for a pause, and measures how fast its answers come."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import Literal

Verdict = Literal["served", "overloaded", "neither"]


class Gate:
    """Permits for requests, first come first served.

    The limit starts at `slots`. A request that the server turned away as too many halves it, once for all requests that
    were under way together. A request that was served adds `1 / limit`, so a whole round of requests adds about one
    (additive increase, multiplicative decrease: Chiu and Jain 1989).
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.limit: float = float(slots)
        """Requests that may be at the server at once; its whole part counts, and it is never under 1."""
        self.inside: int = 0
        self.open_at: float = 0.0
        """No request goes before this time, on the loop's clock."""
        self._round = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def pause(self, seconds: float) -> None:
        """Let no request go for so many seconds: the server asked for that."""
        self.open_at = max(self.open_at, asyncio.get_running_loop().time() + seconds)

    @property
    def closed_for(self) -> float:
        """Seconds until a request may go."""
        return max(0.0, self.open_at - asyncio.get_running_loop().time())

    async def enter(self) -> int:
        """Wait for a permit and return the number of the round, which `leave` takes back."""
        if self.inside >= int(self.limit) or self._waiting:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._free()  # the permit had come already
                else:
                    with contextlib.suppress(ValueError):  # passed over by `_free`
                        self._waiting.remove(waiter)
                raise
        else:
            self.inside += 1
        return self._round

    def leave(self, round_: int, verdict: Verdict) -> None:
        """Give a permit back, with how the server took the request."""
        if verdict == "overloaded" and round_ == self._round:
            self.limit = max(1.0, self.limit / 2)
            self._round += 1
        elif verdict == "served":
            self.limit = min(float(self.slots), self.limit + 1 / self.limit)
        self._free()

    def _free(self) -> None:
        self.inside -= 1
        while self._waiting and self.inside < int(self.limit):
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.inside += 1
                waiter.set_result(None)


class AnswerSpeed:
    """The speed of a server's answers. It gives the estimated length of an answer that was cancelled before any of it
    came."""

    def __init__(self) -> None:
        self.rate: float = 50.0
        """Tokens a second of one answer: a mean over the last dozen or so."""
        self.per_byte: float = 0.25
        """Tokens for each byte of a prompt, likewise."""
        self.per_piece: float | None = None
        """The most tokens for each piece of a stream, of late; `None` until the server has counted one."""

    def add(self, tokens: int, seconds: float) -> None:
        """Take note of an answer that came to its end."""
        if tokens and seconds > 0:
            self.rate += (tokens / seconds - self.rate) / 8

    def estimate(self, seconds: float, most: int) -> int:
        """Return about how many tokens were generated in so many seconds."""
        return min(most, math.ceil(self.rate * seconds))

    def read(self, tokens: int, size: int) -> None:
        """Take note of how many tokens the server read in a prompt of so many bytes."""
        if size:
            self.per_byte += (tokens / size - self.per_byte) / 8

    def prompt(self, size: int) -> int:
        """Return about how many tokens a prompt of so many bytes has."""
        return math.ceil(self.per_byte * size)

    def counted(self, tokens: int, pieces: int) -> None:
        """Take note of how many tokens the server counted in an answer that came in so many pieces."""
        if pieces:
            before = 0.0 if self.per_piece is None else self.per_piece * 0.95
            self.per_piece = max(1.0, before, tokens / pieces)

    def unread(self, pieces: int, size: int) -> int:
        """Return how many more tokens than pieces a text of so many bytes may have: a token has one byte at least, and
        the last may have none."""
        most = size if self.per_piece is None else math.ceil(pieces * self.per_piece)
        return max(0, most - pieces) + 1
