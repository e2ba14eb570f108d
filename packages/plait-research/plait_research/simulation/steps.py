"""An engine whose steps decode and prefill together, as vLLM's scheduler fills them (chunked prefill).

A step has a budget of tokens. Sequences that decode take one each; prompts take the rest in order of arrival, the last
one perhaps in part. The step that reads the end of a prompt writes its first token.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from .latency import DecodeBatch, RunningJob

_EXACT = 1e-6
"""Rounding of a mark, in tokens."""


@dataclass(slots=True, eq=False)
class StepBatch(DecodeBatch):
    """The sequences of a host with `step_tokens`. Its mark counts steps: a step ends where the mark is whole."""

    waiting: deque[RunningJob] = field(default_factory=deque[RunningJob])
    """Jobs with an unread part of their prompt (`RunningJob.unread`)."""
    _read: list[RunningJob] = field(default_factory=list[RunningJob])
    """Jobs of whose prompts the current step reads a part."""
    _end: float | None = None
    """Mark at which that step ends; `None`: no step reads."""
    _tokens: int = 0
    """Number of prompt tokens that it reads."""
    _context: int = 0
    """Number of tokens of its prompts that have been read when it ends."""

    def advance(self, now: float) -> None:
        """Advance the mark to a time."""
        if self.size or self._read:
            self.mark += (now - self.at) * self._rate()
        self.at = now

    def join(self, running: RunningJob, now: float) -> None:
        """Begin to decode a sequence whose first token was written by the step that ended now."""
        self.mark -= 1
        DecodeBatch.join(self, running, now)
        self.mark += 1

    def next_at(self) -> float | None:
        """Return the time of the next report, or of the end of a step if prompts wait or are read."""
        times = [at for at in (DecodeBatch.next_at(self), self._ends_at()) if at is not None]
        return min(times, default=None)

    def next_step(self, now: float) -> list[RunningJob] | None:
        """End a step, and return the jobs whose prompts have been read; or fill the next step. `None`: neither is due
        before a report."""
        self.advance(now)
        report, end = DecodeBatch.next_at(self), self._ends_at()
        if end is None or (report is not None and report <= max(now, end)):
            return None
        self.mark = float(math.ceil(self.mark - _EXACT))
        if self._end is None:
            self._fill()
            return []
        read = [running for running in self._read if not running.unread]
        self._read, self._end, self._tokens, self._context = [], None, 0, 0
        return read

    def clear(self, now: float) -> None:
        """Remove all sequences."""
        DecodeBatch.clear(self, now)
        self.waiting.clear()
        self._read, self._end, self._tokens, self._context = [], None, 0, 0

    def _fill(self) -> None:
        """Give the tokens of a step that no sequence decodes with to the prompts that wait."""
        self._end = self.mark + 1
        while self.waiting and (room := self.host.step_tokens - self.size - self._tokens) > 0:
            running = self.waiting[0]
            if not running.over:
                tokens = min(room, running.unread)
                running.unread -= tokens
                self._tokens += tokens
                self._context += running.prompt_tokens - running.unread
                self._read.append(running)
            if running.over or not running.unread:
                self.waiting.popleft()

    def _ends_at(self) -> float | None:
        if self._end is None and not self.waiting:
            return None
        idle = not (self.size or self._read)
        end = self.mark if idle else self._end if self._end is not None else math.ceil(self.mark - _EXACT)
        return self.at + max(0.0, end - self.mark) / self._rate()

    def _rate(self) -> float:
        decoding = 1.0 / self.host.rate(self.size, self.context + self._context, self.streaming)
        return self.share / max(decoding, (self.size + self._tokens) / self.host.prefill_rate)
