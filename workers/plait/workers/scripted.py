"""A model worker that answers from a script: the public test double of an engine.

It streams replies with delays, stop texts, token limits and cancellation as an engine would. It has no model, and no
tokenizer: a token is a word with the white space before it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import runpy
import zlib
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from plait.core.errors import ConfigError, ContextOverflow, EngineError, Rejected, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.messages import explain, first_of_each, json_path
from plait.core.ops import Kind, ModelCall, Text
from plait.core.prefix_index import BYTES_A_TOKEN, PrefixIndex
from plait.core.result import Failure, Result, Usage, as_failure
from plait.core.sampling import Sampling
from plait.core.values import Frozen

__all__ = ["Reply", "Script", "Scripted"]

_WORD = re.compile(r"\s*\S+|\s+")
_MOST_WORDS = 50_000
"""Size of the prefix cache: a test may run for hours, and an engine's cache is no larger than its memory either."""


class Reply(Frozen):
    """An answer, and the prompts that get it."""

    when: str | None = None
    """Regular expression looked for anywhere in the prompt (`re.search`); without it the reply answers every prompt.
    `^` and `$` match at every line, and `.` matches line ends too; write `(?-s:.)` for one that does not."""
    text: str = ""
    """The answer. With `finish: "error"`, what is generated before the error, and the message."""
    finish: Literal["stop", "length", "error"] = "stop"
    """How the answer ends by itself; `error` makes the step fail with an `EngineError`."""
    delay: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Seconds before the first token."""
    tokens_per_second: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    """Rate of the tokens after that; as fast as they are read by default."""
    times: int | None = Field(default=None, ge=1)
    """How often this reply is given before it is passed over; no limit by default."""
    labels: dict[str, float] = {}
    """Probabilities of `Sampling.labels`, of a step that asks for them; its text is the likeliest."""
    retryable: bool = False
    """Whether a `finish: "error"` is retryable."""

    @field_validator("when")
    @classmethod
    def _compiles(cls, when: str | None) -> str | None:
        if when is not None:
            try:
                _compiled(when)
            except re.error as error:
                raise ValueError(f"{when!r} is not a regular expression: {error}") from None
        return when


class Script(Frozen):
    """A script file."""

    replies: tuple[Reply, ...]
    """The first one that matches and is not used up answers."""

    @classmethod
    def read(cls, path: str | Path) -> Script:
        """Read a JSON file, or run a Python file and take its list `REPLIES`. Raises `ConfigError` naming the place of
        the first fault."""
        if Path(path).suffix == ".py":
            return cls._of_code(Path(path).expanduser())
        try:
            text = Path(path).expanduser().read_bytes()
        except OSError as error:
            what = error.strerror or type(error).__name__
            raise ConfigError(
                f'the script {path} cannot be read ({what}): give a JSON file {{"replies": […]}}'
            ) from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            if detail["type"] == "json_invalid":
                raise ConfigError(f"the script {path} is not JSON: {detail['msg'].partition(': ')[2]}") from None
            raise ConfigError(f"the script {path}: {_faults(error)}") from None

    @classmethod
    def _of_code(cls, path: Path) -> Script:
        try:
            replies = runpy.run_path(str(path)).get("REPLIES")
        except Exception as error:  # whatever a file of the user's does
            raise ConfigError(f"the script {path} cannot be run: {type(error).__name__}: {error}") from error
        if replies is None:
            raise ConfigError(f"the script {path} has no REPLIES: write REPLIES = [Reply(text=…)]")
        try:
            return cls(replies=replies)
        except ValidationError as error:
            raise ConfigError(f"the script {path}: {_faults(error)}") from None


class Scripted(Worker):
    """Answers think steps from a script.

    Options: `replies`, or the path of a JSON file in `script`; `slots`, requests at the same time; `name`;
    `max_model_len`, tokens of a prompt and its answer (default: no limit).

    Prompts are read as text, and results carry no token ids, so a context that is continued arrives as text. A step
    that streams gets a delta for each token. `usage.cached` models a prefix cache: the words that the prompt shares,
    from its start, with what earlier requests had in their contexts.

    Raises `ConfigError` for a script that cannot be read or makes no sense.
    """

    serves: tuple[Kind, ...] = ("think",)
    reports: int | None = 16

    def __init__(
        self,
        replies: Sequence[Reply] | None = None,
        *,
        script: str | Path | None = None,
        slots: int = 128,
        name: str = "scripted",
        max_model_len: int | None = None,
    ) -> None:
        if (replies is None) == (script is None):
            raise ConfigError(
                "the scripted worker needs `replies` or a `script` file, and not both: pass --script FILE"
            )
        self.name = name
        self.slots, self.max_model_len = slots, max_model_len
        self.script = Script.read(script) if script is not None else Script(replies=tuple(replies or ()))
        self.counts = {"requests": 0, "generated": 0, "prompt": 0, "cached": 0}
        """Since it was made: requests, tokens generated (cancelled ones too), prompt tokens, cached ones among them."""
        self._patterns = [_compiled(reply.when or "") for reply in self.script.replies]
        self._left = [reply.times for reply in self.script.replies]
        self._cache = PrefixIndex()
        self._cache.limit(name, _MOST_WORDS)
        self._live: dict[int, _Live] = {}
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Nothing to load."""
        self._closed = asyncio.Event()

    def _read(self, words: Sequence[str]) -> int:
        """Enter a context into the prefix cache and return the number of words that were cached."""
        content = array("I", (zlib.crc32(word.encode(errors="replace")) for word in words)).tobytes()
        return self._cache.record_sent(self.name, None, content) // BYTES_A_TOKEN

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Stream the reply to one prompt, then its result."""
        prepared = self._prepare(job)
        if isinstance(prepared, Failure):
            yield prepared
            return
        think, prompt, reply = prepared
        words = words_of(prompt)
        cached = self._read(words)
        self.counts["requests"] += 1
        self.counts["prompt"] += len(words)
        self.counts["cached"] += cached
        sampling = think.sampling
        if self.max_model_len is not None:
            room = min(sampling.max_tokens, self.max_model_len - len(words))
            sampling = sampling.model_copy(update={"max_tokens": room})
        tokens, cut = generated(reply.text, sampling)
        live = self._live[job.attempt] = _Live(len(tokens), reply.tokens_per_second)
        done = 0
        try:
            await live.sleep(reply.delay)
            while due := await live.due():
                self.counts["generated"] += due
                done += due
                if think.stream:
                    yield Progress("".join(tokens[done - due : done]), due)
                elif job.report:
                    yield Progress("", due)
        finally:
            if self._live.get(job.attempt) is live:
                del self._live[job.attempt]
        text = "".join(tokens[:done])
        self._read(words_of(prompt + text))
        complete = done == len(tokens) and done > 0
        finish = "cancelled" if live.stopped and not complete else cut or reply.finish
        if finish == "error":
            message = f"the script answers with an error after {done} tokens: {_head(reply.text)}"
            yield Failure(kind="EngineError", message=message, retryable=reply.retryable)
            return
        usage = Usage(prompt=len(words), cached=cached, completion=done)
        if think.sampling.labels:
            yield _labelled(reply.labels, think.sampling.labels, usage)
            return
        yield Result(value=text, usage=usage, finish=finish)

    async def cancel(self, attempt: int) -> None:
        """Stop generating; the result then has the text so far."""
        if live := self._live.get(attempt):
            live.stop()

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Return the words of a prompt of text."""
        texts = [part.text for part in op.parts if isinstance(part, Text)]
        return len(words_of("".join(texts) + op.begin)) if len(texts) == len(op.parts) else None

    async def health(self) -> AsyncIterator[bool]:
        """Ready until closed."""
        if not self._closed.is_set():
            yield True
            await self._closed.wait()

    async def close(self) -> None:
        """Stop everything."""
        self._closed.set()
        for live in self._live.values():
            live.stop()

    def stats(self) -> dict[str, int]:
        """Return `counts` and the requests `running` now."""
        return {**self.counts, "running": len(self._live)}

    def _prepare(self, job: Job) -> tuple[ModelCall, str, Reply] | Failure:
        """Find the reply to a job, and use it up by one."""
        think = job.op
        if self._closed.is_set():
            return as_failure(WorkerLost(f"worker {self.name!r} is closed"))
        if not isinstance(think, ModelCall):
            return as_failure(EngineError(f"worker {self.name!r} serves think steps, not {think.kind!r} steps"))
        if any(message.images for message in think.messages):
            return as_failure(Rejected(f"worker {self.name!r} has no model and sees no images: give text alone"))
        texts = [part.text for part in think.parts if isinstance(part, Text)]
        # Token ids mean something to the engine that gave them alone.
        if len(texts) < len(think.parts):
            complaint = f"worker {self.name!r} has no tokenizer and cannot read token ids: give the prompt as text"
            return as_failure(EngineError(complaint))
        prompt = "".join(texts) + think.begin
        if self.max_model_len is not None and (size := len(words_of(prompt))) >= self.max_model_len:
            message = f"the prompt has {size} tokens, and the model's context holds {self.max_model_len}"
            return as_failure(ContextOverflow(f"{message}: shorten the prompt, or raise max_model_len"))
        for index, (reply, pattern) in enumerate(zip(self.script.replies, self._patterns, strict=True)):
            left = self._left[index]
            # A reply that is used up makes room for the next one that matches.
            if left == 0 or not pattern.search(prompt):
                continue
            if left is not None:
                self._left[index] = left - 1
            return think, prompt, reply
        used_up = " that is left" if 0 in self._left else ""
        remedy = "add one whose `when` is found in it, or a last one without `when`"
        return as_failure(EngineError(f"no reply of the script{used_up} matches the prompt {_head(prompt)}: {remedy}"))


def _labelled(given: Mapping[str, float], labels: Sequence[str], usage: Usage) -> Result | Failure:
    known = {label: math.log(given[label]) for label in labels if given.get(label, 0.0) > 0.0}
    if not known:
        return as_failure(EngineError("the script's reply has no probability of a label: give it `labels`"))
    return Result(value=max(known, key=lambda label: known[label]), labels=known, usage=usage, finish="length")


def _compiled(when: str) -> re.Pattern[str]:
    return re.compile(when, re.MULTILINE | re.DOTALL)


def _head(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:120] + "…")


def _faults(error: ValidationError) -> str:
    return "; ".join(explain(json_path(detail["loc"]) or "it", detail, Script) for detail in first_of_each(error))


class _Live:
    """One running request: `count` tokens, at `rate` a second or as fast as they are read."""

    __slots__ = ("_count", "_done", "_rate", "_start", "_waiter", "stopped")

    def __init__(self, count: int, rate: float | None) -> None:
        self.stopped = False
        self._count, self._rate = count, rate
        self._done, self._start = 0, -1.0
        self._waiter: asyncio.Future[None] | None = None

    async def due(self) -> int:
        """Return the number of next tokens: one, more when the loop is late, none after the last or a stop."""
        loop = asyncio.get_running_loop()
        if self._start < 0:
            self._start = loop.time()
        due = 1
        if self._done == self._count:
            return 0
        if self._rate is not None:
            await self.sleep(self._start + (self._done + 1) / self._rate - loop.time())
            late = int((loop.time() - self._start) * self._rate)
            due = max(1, min(self._count, late) - self._done)
        elif self._done % 16 == 0:
            await asyncio.sleep(0)  # let others run, and cancel
        if self.stopped:
            return 0
        self._done += due
        return due

    def stop(self) -> None:
        self.stopped = True
        self._wake()

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or the request is stopped."""
        if seconds <= 0 or self.stopped:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def words_of(text: str) -> list[str]:
    """Cut a text into tokens: words, each with the white space before it; white space at the end is one more."""
    return _WORD.findall(text)


def generated(text: str, sampling: Sampling) -> tuple[list[str], Literal["stop", "length"] | None]:
    """Return the texts of the tokens that are generated of `text`, and what ends them before its own end, if anything.

    A token limit ends it first, then the stop text that is complete first (of two that end together, the longer one).
    The token in which a stop text ends is generated, even if none of its text is kept.
    """
    words = words_of(text)
    tokens = words[: sampling.max_tokens]
    text = "".join(tokens)
    hits = [(start + len(stop), start) for stop in sampling.stop if stop and (start := text.find(stop)) >= 0]
    if not hits:
        return tokens, "length" if len(tokens) < len(words) else None
    end, start = min(hits)
    keep = end if sampling.keep_stop else start
    kept: list[str] = []
    for token, begin in zip(tokens, itertools.accumulate(map(len, tokens), initial=0), strict=False):
        if begin >= end:
            break
        kept.append(token[: max(0, keep - begin)])
    return kept, "stop"
