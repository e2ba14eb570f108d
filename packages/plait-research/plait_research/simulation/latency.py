"""Durations and outcomes of jobs in a simulated cluster.

A host decodes all its sequences together, so each is slower in a larger batch, and prefills prompts one after another
(`steps.py`: in the same steps). The caches are in `prefix_cache.py`; memory is not modelled otherwise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from plait.core.events import Job
from plait.core.ops import Kind, ModelCall, Text
from plait.core.result import Failure, Price, Result, Usage

from .confidence import SimTrace

Rate = Callable[[int], float]
"""Maps a batch size to the tokens per second of each sequence."""
Outcome = Callable[[Job, Random], Result | Failure]
"""The outcome of a job. Its random numbers depend only on seed, step and try, so a step has the same outcome under any
policy."""


def saturating(peak: float = 5600.0, half: float = 13.0) -> Rate:
    """Return a decode rate at which n sequences together generate `peak * n / (n + half)` tokens per second.

    The defaults fit a model of a few million parameters on four CPU cores: 400 tokens/s alone, 5,100 for 128.
    """
    return lambda batch: peak / (batch + half)


@dataclass(frozen=True, slots=True)
class Host:
    """A worker of the simulated cluster."""

    name: str
    slots: int = 64
    serves: tuple[Kind, ...] = ("think", "call")
    prefill_rate: float = 20_000.0
    """Prompt tokens per second of all sequences together."""
    decode_rate: Rate | float = field(default_factory=saturating)
    """Tokens per second of each sequence, by batch; a number if the batch makes no difference."""
    models: tuple[str, ...] = ()
    """Models that the host serves (`ModelCall.model`); empty: all models."""
    cache_tokens: int = 0
    """Capacity of its prefix cache in tokens; 0: no cache, so every prompt is prefilled completely."""
    block: int = 16
    """Number of tokens in a block of the cache."""
    tells_ids: bool = False
    """Whether its reports on think steps have token ids. It then continues the ids of a lost attempt."""
    reports: int = 16
    """Tokens between two reports of a job with a budget; 0: it reports only at the end."""
    price: Price | None = None
    """Price of its tokens and its time."""
    context: float = 0.0
    """Additional seconds of a decoding step for each token of context of all its sequences."""
    streamed: float = 0.0
    """Additional seconds of a decoding step for each streaming sequence."""
    blocking: bool = False
    """Whether prefill blocks decoding, as in an engine that does both in the same steps."""
    text: int = 4
    """Characters of text for a token, where no token ids are known."""
    step_tokens: int = 0
    """Tokens of a step, which decoding and prefill share as in vLLM (`max_num_batched_tokens`). A step takes as long as
    its decoding, or as computing all its tokens at `prefill_rate` if that is longer. 0: no such steps."""

    def rate(self, batch: int, context: float = 0.0, streaming: int = 0) -> float:
        """Return the tokens per second of each of `batch` sequences, given their total context tokens and the number of
        streaming sequences."""
        rate = self.decode_rate(batch) if callable(self.decode_rate) else self.decode_rate
        more = self.context * context + self.streamed * streaming
        return 1.0 / (1.0 / rate + more) if more else rate


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Latencies outside the model, in seconds."""

    dispatch: float = 0.0
    """Time from the machine's decision until the worker starts."""
    call: float | Callable[[Job, Random], float] = 0.05
    """Duration of a tool call."""
    planner: float = 0.0
    """Time from a step's event until its reader returns."""
    abort_latency: float = 0.002
    """Time from the machine's decision to cancel until the worker's answer."""
    chunk: int = 16
    """Number of tokens between two events of a streaming step."""

    def seconds(self, job: Job, rng: Random) -> float:
        """Return the seconds of a tool call."""
        return max(0.0, self.call(job, rng)) if callable(self.call) else self.call


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """A worker is lost with all its attempts."""

    at: float
    worker: str
    down_for: float | None = None
    """Seconds until the worker is back; `None`: never."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A worker becomes slower, or regains its speed."""

    at: float
    worker: str
    share: float
    """Fraction of its full speed in prefill and decoding."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The user cancels the run."""

    at: float


def whole(job: Job, rng: Random) -> Result:
    """Return the outcome where think steps generate up to their token limit and tools return `null`."""
    tokens = job.op.sampling.max_tokens if isinstance(job.op, ModelCall) else 0
    return Result(value="" if isinstance(job.op, ModelCall) else None, usage=Usage(completion=tokens), finish="length")


def varied(share: float = 0.3) -> Outcome:
    """Return an outcome whose lengths are exponentially distributed around a share of the step's token limit."""

    def outcome(job: Job, rng: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result()
        limit = job.op.sampling.max_tokens
        tokens = 1 + int(rng.expovariate(1.0 / max(1e-9, share * limit)))
        return Result(
            value="", usage=Usage(completion=min(limit, tokens)), finish="stop" if tokens < limit else "length"
        )

    return outcome


def priced(job: Job, result: Result, characters: int = 4) -> Result:
    """Return the result of a think step with its tokens counted, and cut at its token limit.

    Text without token ids counts as a token for every four characters, or as many as given.
    """
    assert isinstance(job.op, ModelCall)
    prompt = sum(_tokens(part.text, characters) if isinstance(part, Text) else len(_ids(part)) for part in job.op.parts)
    generated = result.usage.completion or len(result.token_ids) or max(1, _tokens(result.text, characters))
    limit = job.op.sampling.max_tokens
    usage = result.usage.model_copy(
        update={"prompt": result.usage.prompt or prompt, "completion": min(generated, limit)}
    )
    # An engine would have cut an outcome's text at the limit.
    if generated <= limit:
        return result.model_copy(update={"usage": usage})
    cut = {"value": result.text[: len(result.text) * limit // generated], "token_ids": result.token_ids[:limit]}
    return result.model_copy(update={**cut, "usage": usage, "finish": "length"})


def _ids(part: object) -> tuple[int, ...]:
    return getattr(part, "ids", ())


def _tokens(text: str, characters: int) -> int:
    return math.ceil(len(text) / characters)


@dataclass(slots=True, eq=False)
class RunningJob:
    """One job on a host."""

    job: Job
    host: Host
    ready: float
    """Time at which its step became ready."""
    start: float
    """Time at which the job was dispatched."""
    outcome: Result | Failure
    chunk: int
    """Tokens between reports; 0: the job reports only at the end."""
    over: bool = False
    joined: float | None = None
    """The host's mark when the job began to decode."""
    told: int = 0
    """Number of reported tokens."""
    prompt: tuple[int, ...] = ()
    """Ids of the prompt, on a host with a cache or ids."""
    ids: tuple[int, ...] = ()
    """Ids of its whole result, beginning with the ids that it resumed from."""
    given: int = 0
    """Number of ids that it resumed from."""
    reason: str = ""
    """Reason for the choice of this host."""
    trace: SimTrace | None = None
    """Confidences of its tokens, if they are known."""

    unread: int = 0
    """Number of prompt tokens that no step has read, on a host with `step_tokens`."""

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of its prompt."""
        return self.outcome.usage.prompt if isinstance(self.outcome, Result) else 0

    @property
    def context(self) -> float:
        """Mean number of context tokens while the job decodes."""
        return self.prompt_tokens + self.tokens / 2

    @property
    def streams(self) -> bool:
        """Whether the job streams its text."""
        return isinstance(self.job.op, ModelCall) and bool(self.job.op.stream)

    @property
    def tokens(self) -> int:
        """Number of tokens that the job will generate."""
        return self.outcome.usage.completion if isinstance(self.outcome, Result) else 0

    def slice(self, upto: int) -> str:
        """Return the text between the reported tokens and token number `upto`."""
        if not isinstance(self.outcome, Result) or not self.tokens:
            return ""
        text, whole = self.outcome.text, self.given + self.tokens
        return text[len(text) * (self.given + self.told) // whole : len(text) * (self.given + upto) // whole]

    def text(self, tokens: int) -> str:
        """Return the text of its first tokens, including the tokens that it resumed from."""
        if not isinstance(self.outcome, Result) or not self.tokens:
            return ""
        text = self.outcome.text
        return text[: len(text) * (self.given + tokens) // (self.given + self.tokens)]


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """The sequences that a host decodes together (processor sharing).

    Its mark is the number of tokens that a sequence decoded from the beginning would have by now. A sequence that joins
    at mark m with n remaining tokens ends at mark m + n, whatever other sequences join or leave; only the time changes.
    """

    host: Host
    mark: float = 0.0
    at: float = 0.0
    size: int = 0
    context: float = 0.0
    """Number of context tokens of all sequences."""
    streaming: int = 0
    """Number of streaming sequences."""
    version: int = 0
    """Number of changes, which detects outdated schedules."""
    read_until: float = 0.0
    """Time at which all prompts so far have been prefilled."""
    share: float = 1.0
    """Fraction of the full speed."""
    debt: float = 0.0
    """Remaining seconds of prefill that block decoding, on a host whose prefill blocks decoding."""
    _goals: list[tuple[float, int, RunningJob]] = field(default_factory=list[tuple[float, int, RunningJob]])

    def advance(self, now: float) -> None:
        """Advance the mark to a time."""
        elapsed = now - self.at
        # An engine whose prefill blocks decoding generates nothing meanwhile.
        if self.debt:
            read = min(self.debt, elapsed)
            self.debt -= read
            elapsed -= read
        if self.size:
            self.mark += elapsed * self._rate()
        self.at = now

    def prefill(self, tokens: int, now: float) -> float:
        """Add a prompt and return the time at which its prefill ends."""
        seconds = tokens / (self.host.prefill_rate * self.share)
        self.read_until = max(self.read_until, now) + seconds
        if self.host.blocking:
            self.debt += seconds
        return self.read_until

    def join(self, running: RunningJob, now: float) -> None:
        """Begin to decode a sequence."""
        self.advance(now)
        self.size += 1
        self.context += running.context
        self.streaming += running.streams
        running.joined = self.mark
        self._aim(running)

    def leave(self, running: RunningJob, now: float) -> None:
        """Stop decoding a sequence, if it has begun."""
        if running.joined is not None:
            self.advance(now)
            self.size -= 1
            self.context -= running.context
            self.streaming -= running.streams

    def generated(self, running: RunningJob, now: float) -> int:
        """Return the number of tokens of a sequence."""
        # Its prompt is still being prefilled.
        if running.joined is None:
            return 0
        self.advance(now)
        return min(running.tokens, int(self.mark - running.joined + 1e-6))

    def next_at(self) -> float | None:
        """Return the time of the next report, if no sequence joins or leaves before."""
        # Cancelled entries stay in the heap until their turn, since a search would cost more.
        while self._goals and self._goals[0][2].over:
            heapq.heappop(self._goals)
        if not self._goals:
            return None
        return self.at + self.debt + max(0.0, self._goals[0][0] - self.mark) / self._rate()

    def due(self, now: float) -> tuple[RunningJob, int]:
        """Remove the sequence with the report at `next_at`, and return its number of tokens."""
        self.advance(now)
        goal, _, running = heapq.heappop(self._goals)
        self.mark = max(self.mark, goal)  # rounding must not delay it forever
        upto = min(running.tokens, running.told + running.chunk) if running.chunk else running.tokens
        return running, upto

    def told(self, running: RunningJob, upto: int) -> None:
        """Continue a sequence after a report on its first `upto` tokens."""
        running.told = upto
        self._aim(running)

    def clear(self, now: float) -> None:
        """Remove all sequences."""
        self.advance(now)
        self._goals.clear()
        self.size, self.streaming, self.context, self.read_until, self.debt = 0, 0, 0.0, now, 0.0

    def throttle(self, share: float, now: float) -> None:
        """Change the speed of all decoding, and of the prefill of later prompts."""
        self.advance(now)
        self.share = share

    def _rate(self) -> float:
        return self.host.rate(self.size, self.context, self.streaming) * self.share

    def _aim(self, running: RunningJob) -> None:
        assert running.joined is not None
        upto = min(running.tokens, running.told + running.chunk) if running.chunk else running.tokens
        heapq.heappush(self._goals, (running.joined + upto, running.job.attempt, running))
