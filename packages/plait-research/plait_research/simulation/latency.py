"""How long things take in a simulated cluster, and what comes out of them.

A host decodes all its sequences together, each the slower the more there are, and reads prompts one after another.
The caches are in `prefix_cache.py`; memory is not modelled otherwise.
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
"""Tokens per second of each sequence, when that many are being decoded together."""
Outcome = Callable[[Job, Random], Result | Failure]
"""What a job ends in. The random numbers depend on seed, step and try alone, so that a step meets the same fate under
any policy."""

CHARACTERS_A_TOKEN = 4


def saturating(peak: float = 5600.0, half: float = 13.0) -> Rate:
    """Return a rate at which n sequences together make `peak * n / (n + half)` tokens per second.

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
    """Prompt tokens per second, of all sequences together."""
    decode_rate: Rate | float = field(default_factory=saturating)
    """Tokens per second of each sequence, by batch; a number if the batch makes no difference."""
    models: tuple[str, ...] = ()
    """Names that `ModelCall.model` may ask for; empty: whatever it asks for."""
    cache_tokens: int = 0
    """Tokens that its prefix cache holds; 0: it has none, and every prompt is read whole."""
    block: int = 16
    """Tokens in a block of that cache."""
    tells_ids: bool = False
    """Its reports on think steps have token ids, and it continues those of a lost attempt."""
    reports: int = 16
    """Tokens between two reports of a job that a budget counts; 0: it reports none before the end."""
    price: Price | None = None
    """Of its tokens and its time."""
    context: float = 0.0
    """Seconds by which a step of decoding takes longer for each token of context of all its sequences."""
    streamed: float = 0.0
    """Seconds by which it takes longer for each sequence whose text is sent while it is written."""
    blocking: bool = False
    """Reading a prompt holds decoding up, as in an engine that does both in the same steps."""

    def rate(self, batch: int, context: float = 0.0, streaming: int = 0) -> float:
        """Return the tokens per second of each of `batch` sequences, with their total tokens of context and the number
        of streaming ones."""
        rate = self.decode_rate(batch) if callable(self.decode_rate) else self.decode_rate
        more = self.context * context + self.streamed * streaming
        return 1.0 / (1.0 / rate + more) if more else rate


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Times that are not the model's, in seconds."""

    dispatch: float = 0.0
    """From the machine's decision until the worker starts."""
    call: float | Callable[[Job, Random], float] = 0.05
    """A tool's run."""
    planner: float = 0.0
    """From a step's news until its reader has answered."""
    abort_latency: float = 0.002
    """From the machine's decision to cancel until the worker's answer."""
    chunk: int = 16
    """Tokens between two pieces of news of a step that streams."""

    def seconds(self, job: Job, rng: Random) -> float:
        """Return how long a tool runs."""
        return max(0.0, self.call(job, rng)) if callable(self.call) else self.call


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """A worker goes away with all that it runs."""

    at: float
    worker: str
    down_for: float | None = None
    """Seconds until it is back; `None`: for good."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A worker becomes slower, or again as fast as it was."""

    at: float
    worker: str
    share: float
    """Of its full speed, in reading and in decoding."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The user gives the run up."""

    at: float


def whole(job: Job, rng: Random) -> Result:
    """Every think step generates all the tokens that it may; every tool returns `null`."""
    tokens = job.op.sampling.max_tokens if isinstance(job.op, ModelCall) else 0
    return Result(value="" if isinstance(job.op, ModelCall) else None, usage=Usage(completion=tokens), finish="length")


def varied(share: float = 0.3) -> Outcome:
    """Return an outcome whose lengths are exponentially distributed around a share of what a step may generate."""

    def outcome(job: Job, rng: Random) -> Result:
        if not isinstance(job.op, ModelCall):
            return Result()
        limit = job.op.sampling.max_tokens
        tokens = 1 + int(rng.expovariate(1.0 / max(1e-9, share * limit)))
        return Result(
            value="", usage=Usage(completion=min(limit, tokens)), finish="stop" if tokens < limit else "length"
        )

    return outcome


def priced(job: Job, result: Result) -> Result:
    """Return the result of a think step with its tokens counted, and cut at its token limit.

    Text without token ids counts as a token for every four characters.
    """
    assert isinstance(job.op, ModelCall)
    prompt = sum(_tokens(part.text) if isinstance(part, Text) else len(_ids(part)) for part in job.op.parts)
    generated = result.usage.completion or len(result.token_ids) or max(1, _tokens(result.text))
    limit = job.op.sampling.max_tokens
    usage = result.usage.model_copy(
        update={"prompt": result.usage.prompt or prompt, "completion": min(generated, limit)}
    )
    # What an outcome says beyond the limit an engine would have cut.
    if generated <= limit:
        return result.model_copy(update={"usage": usage})
    cut = {"value": result.text[: len(result.text) * limit // generated], "token_ids": result.token_ids[:limit]}
    return result.model_copy(update={**cut, "usage": usage, "finish": "length"})


def _ids(part: object) -> tuple[int, ...]:
    return getattr(part, "ids", ())


def _tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_A_TOKEN)


@dataclass(slots=True, eq=False)
class RunningJob:
    """One job on a host."""

    job: Job
    host: Host
    ready: float
    """When its step became ready."""
    start: float
    """When it was dispatched."""
    outcome: Result | Failure
    chunk: int
    """Tokens between news; 0 for none before the end."""
    over: bool = False
    joined: float | None = None
    """The host's mark when it began to decode."""
    told: int = 0
    """Tokens it has sent news of."""
    prompt: tuple[int, ...] = ()
    """Ids of the prompt, on a host with a cache or ids."""
    ids: tuple[int, ...] = ()
    """Ids of its whole result, those that it went on from first."""
    given: int = 0
    """How many of these it went on from."""
    reason: str = ""
    """Why it was sent here."""
    trace: SimTrace | None = None
    """How sure it is of its tokens, where that is known."""

    @property
    def context(self) -> float:
        """Tokens before the one that is being generated, in the mean over its time."""
        return (self.outcome.usage.prompt if isinstance(self.outcome, Result) else 0) + self.tokens / 2

    @property
    def streams(self) -> bool:
        """Whether its text is sent while it is written."""
        return isinstance(self.job.op, ModelCall) and bool(self.job.op.stream)

    @property
    def tokens(self) -> int:
        """How many it will generate."""
        return self.outcome.usage.completion if isinstance(self.outcome, Result) else 0

    def slice(self, upto: int) -> str:
        """Return the text between the news sent so far and token number `upto`."""
        if not isinstance(self.outcome, Result) or not self.tokens:
            return ""
        text, whole = self.outcome.text, self.given + self.tokens
        return text[len(text) * (self.given + self.told) // whole : len(text) * (self.given + upto) // whole]

    def text(self, tokens: int) -> str:
        """Return the text of its first tokens, those included that it went on from."""
        if not isinstance(self.outcome, Result) or not self.tokens:
            return ""
        text = self.outcome.text
        return text[: len(text) * (self.given + tokens) // (self.given + self.tokens)]


@dataclass(slots=True, eq=False)
class DecodeBatch:
    """The sequences that a host decodes together (processor sharing).

    Its mark is the number of tokens that a sequence there from the beginning would have by now. A sequence that joins
    at mark m with n tokens to go is done at mark m + n, whatever other sequences come and go; only the time changes.
    """

    host: Host
    mark: float = 0.0
    at: float = 0.0
    size: int = 0
    context: float = 0.0
    """Tokens of context of all sequences."""
    streaming: int = 0
    """Sequences that stream."""
    version: int = 0
    """Counts changes, to tell plans made before one."""
    read_until: float = 0.0
    """When all prompts given so far have been read."""
    share: float = 1.0
    """Of its full speed."""
    debt: float = 0.0
    """Seconds of reading that decoding has yet to wait for, on a host where that is so."""
    _goals: list[tuple[float, int, RunningJob]] = field(default_factory=list[tuple[float, int, RunningJob]])

    def advance(self, now: float) -> None:
        """Move the mark to a time."""
        elapsed = now - self.at
        # An engine that reads prompts between its steps decodes nothing meanwhile.
        if self.debt:
            read = min(self.debt, elapsed)
            self.debt -= read
            elapsed -= read
        if self.size:
            self.mark += elapsed * self._rate()
        self.at = now

    def prefill(self, tokens: int, now: float) -> float:
        """Take a prompt in and return when it has been read."""
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
        # Its prompt is still being read.
        if running.joined is None:
            return 0
        self.advance(now)
        return min(running.tokens, int(self.mark - running.joined + 1e-6))

    def next_at(self) -> float | None:
        """Return the time of the next sequence's report, if no sequence comes or goes before."""
        # What was cancelled stays in the heap until its turn: to search for it would cost more.
        while self._goals and self._goals[0][2].over:
            heapq.heappop(self._goals)
        if not self._goals:
            return None
        return self.at + self.debt + max(0.0, self._goals[0][0] - self.mark) / self._rate()

    def due(self, now: float) -> tuple[RunningJob, int]:
        """Take out the sequence whose report `next_at` announced, and return its number of tokens."""
        self.advance(now)
        goal, _, running = heapq.heappop(self._goals)
        self.mark = max(self.mark, goal)  # rounding must not put it off for ever
        upto = min(running.tokens, running.told + running.chunk) if running.chunk else running.tokens
        return running, upto

    def told(self, running: RunningJob, upto: int) -> None:
        """Continue a sequence after a report on its first `upto` tokens."""
        running.told = upto
        self._aim(running)

    def clear(self, now: float) -> None:
        """Drop everything."""
        self.advance(now)
        self._goals.clear()
        self.size, self.streaming, self.context, self.read_until, self.debt = 0, 0, 0.0, now, 0.0

    def throttle(self, share: float, now: float) -> None:
        """Change the speed of all that is decoded, and of the prompts that are read from now on."""
        self.advance(now)
        self.share = share

    def _rate(self) -> float:
        return self.host.rate(self.size, self.context, self.streaming) * self.share

    def _aim(self, running: RunningJob) -> None:
        assert running.joined is not None
        upto = min(running.tokens, running.told + running.chunk) if running.chunk else running.tokens
        heapq.heappush(self._goals, (running.joined + upto, running.job.attempt, running))
