"""A model worker for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

from plait.core.errors import EngineError, Rejected, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import CacheNews, Progress, Tell, Worker
from plait.core.ops import Kind, Think
from plait.core.result import Failure, Result, as_failure

from .._shared.options import made, takes
from .._shared.streams import Stream
from .connection import DEFAULT_KEY, AnswerLimits, Link
from .kv_events import KvEvents
from .limiter import Gate
from .options import WIDE, HttpOptions, check
from .probe import ServerFacts, probe, unchanged, unknown
from .sender import REPORTS, LiveJob, Sender, log
from .wire import ServerError

__all__ = ["AnswerLimits", "Http", "Link", "ServerError"]

_REJECTED = (400, 413, 415, 422)
"""What a server answers to a request that is wrong in itself."""


@takes(HttpOptions)
class Http(Worker):
    """An OpenAI-compatible server, over HTTP.

    `start` asks the server for one token to find out which requests it takes: token ids, text completions, or chat
    completions alone. A server of token ids gets prompts and continued contexts as ids, as an engine in this process
    does. Cancelling a step closes its connection, and the server stops generating. Answers are streamed, except short
    ones whose text nobody follows (`whole`).

    Where the server takes token ids, an answer that broke off is continued from its ids, once, and so is a job with
    `generated` ids; `logprob` and `signals` are then about the new tokens only. The job starts from the beginning where
    its ids cannot be continued: after half a character or the possible beginning of a stop text, with a form, in a
    chat. If the server comes back with another model, old ids are not used: they would mean other words.

    Without token ids `usage` counts a token for each piece of text until the server says how many there were. An answer
    is cut at its `max_tokens`, whatever the server does. The key is replaced by `***` wherever a server repeats it.
    """

    serves: tuple[Kind, ...] = ("think",)
    reports: int | None = REPORTS
    Options: ClassVar[type[HttpOptions]]

    def __init__(self, base_url: str, **options: Any) -> None:
        """Describe the server; nothing is sent before `start`. The keywords are the fields of `HttpOptions`.

        Raises `ConfigError`.
        """
        check(base_url, options.get("api_key_env"))
        given = made(HttpOptions, "http", {"base_url": base_url.rstrip("/"), **options})
        self.options, self.base_url, self.model = given, given.base_url, given.model
        self.name, self.slots = given.name, given.slots or WIDE
        self.counts = {"requests": 0, "retries": 0, "overloaded": 0, "generated": 0, "prompt": 0, "cached": 0}
        """Counts since it was made: requests sent, requests sent again, requests turned away as too many (429, 503),
        tokens."""
        self.models: tuple[str, ...] = ()
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self.identity = ""
        self.hints = given.hints != "none"
        self._sender: Sender | None = None
        self._links: list[Link] = []
        """All that were opened: a job under way keeps its own when the server comes back with another model."""
        self._gate = Gate(self.slots)
        self._live: dict[int, LiveJob] = {}
        self._suspect = asyncio.Event()
        self._closed = False
        self._events = KvEvents(given.kv_events, given.kv_replay) if given.kv_events else None

    @property
    def tenant(self) -> str:
        """A digest of the key, empty without one: what is cached for one key is not given to another."""
        key = os.environ.get(self.options.api_key_env or DEFAULT_KEY, "").strip()
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""

    async def start(self) -> None:
        """Find out what the server takes. Raises `EngineError` with the cause, within `start_timeout` seconds."""
        if self._sender is not None:
            return
        self._gate, self._closed, self._suspect = Gate(self.slots), False, asyncio.Event()
        seconds, wait = self.options.start_timeout, self.options.backoff
        try:
            async with asyncio.timeout(seconds):
                for left in range(self.options.retries, -1, -1):
                    try:
                        self._use(await probe(self._link, self.base_url, self.model, self.options.endpoint))
                        return
                    except ServerError as trouble:
                        if trouble.unreachable or not trouble.retryable or not left:
                            raise EngineError(trouble.message) from None
                        log.info("%s: %s", self.name, trouble.message)
                        await asyncio.sleep(max(wait, trouble.retry_after or 0.0))
                        wait *= 2
        except TimeoutError:
            raise EngineError(
                f"{self.base_url} did not answer within {seconds:g} s: check the address, and whether the server has "
                "loaded its model"
            ) from None

        finally:
            if self._events is not None and self._sender is not None:
                self._events.start()

    def _use(self, server: ServerFacts) -> None:
        self.models, self.identity = server.models, server.identity
        if self.options.slots is None and server.slots and self._sender is None:
            self.slots = min(WIDE, server.slots + -(-server.slots // 4))
            self._gate = Gate(self.slots)
        self._links.append(server.link)
        self._sender = Sender(self.options, server, self._gate, self.counts, self._suspect)

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Generate for one think step: deltas if it streams, then the result."""
        stream = Stream()
        self.begin(job, stream.push)
        try:
            async for item in stream:
                yield item
        finally:
            live = self._live.get(job.attempt)
            if live is not None and live.task is not None:
                live.task.cancel()
                await asyncio.wait([live.task])

    def begin(self, job: Job, tell: Tell) -> None:
        """Generate for one think step, and tell what `run` would yield."""
        think, sender = job.op, self._sender
        if sender is None or self._closed:
            tell(as_failure(WorkerLost(f"worker {self.name!r} is not running")))
            return
        if not isinstance(think, Think):
            tell(as_failure(EngineError(f"worker {self.name!r} serves think steps, not {think.kind!r} steps")))
            return
        live = self._live[job.attempt] = LiveJob(job, think, tell)
        live.task = asyncio.create_task(self._serve(live, sender))
        live.task.add_done_callback(lambda _: self._over(live, sender))

    def _over(self, live: LiveJob, sender: Sender) -> None:
        """Forget a job, and tell the end of one that was not even begun."""
        if self._live.get(live.job.attempt) is live:
            del self._live[live.job.attempt]
        live.say(live.why or sender.partial(live))

    async def cancel(self, attempt: int) -> None:
        """Close the request's connection; its stream then ends with what was generated."""
        live = self._live.get(attempt)
        if live is not None and live.task is not None:
            live.task.cancel()

    async def count_tokens(self, op: Think) -> int | None:
        """Return the tokens of a prompt that goes to the server as ids: it says what they are. Of a chat's template it
        says nothing."""
        return await self._sender.prompt_tokens(op) if self._sender is not None else None

    async def cache_news(self) -> AsyncIterator[CacheNews]:
        """Yield what the server says of its prefix cache (`kv_events`)."""
        if self._events is not None:
            async for news in self._events.mailbox:
                yield news

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True`, then `False` whenever the server cannot be reached and `True` when it can again."""
        up, every = True, self.options.ping_every
        if self._closed:
            return
        yield up
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspect.wait(), every if up else min(1.0, every))
            broke = self._suspect.is_set()
            self._suspect.clear()
            there = not self._closed and await self._reachable()
            if there and (broke or not up):
                there = await self._look_again()
            if self._closed:
                return
            if there != up:
                up = there
                if not up:
                    self._give_up(as_failure(WorkerLost(f"{self.base_url} cannot be reached any more")))
                yield up

    async def close(self) -> None:
        """Give up everything and close all connections."""
        self._closed = True
        self._suspect.set()
        links, self._links, self._sender = self._links, [], None
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._events is not None:
            await self._events.close()
        for link in links:
            await link.close()

    def stats(self) -> dict[str, float]:
        """Return `counts`, the jobs `running`, and the `limit` on requests at the same time."""
        return {**self.counts, "running": len(self._live), "limit": self._gate.limit}

    async def _serve(self, live: LiveJob, sender: Sender) -> None:
        """Do one job and push its end."""
        link = sender.server.link
        try:
            end: Result | Failure = await sender.send(live)
        except asyncio.CancelledError:
            end = live.why or sender.partial(live)
        except EngineError as error:
            end = as_failure(error)
        except ServerError as trouble:
            end = self._failure(trouble, sender.server)
        except Exception as error:  # of a library: it fails this job and nothing else
            reason = link.scrub(f"{type(error).__name__}: {error}")
            end = as_failure(EngineError(f"the request to {link.base_url} failed: {reason}"))
        if isinstance(end, Failure):
            end = end.model_copy(update={"usage": live.spent})
        elif self._events is not None and end.prompt_ids:
            asked = live.think.model
            model = asked if asked is not None and asked != sender.server.model else ""
            self._events.ended(live.job.attempt, end, model, live.think.salt)
        sender.count(live)
        live.say(end)

    def _failure(self, trouble: ServerError, server: ServerFacts) -> Failure:
        if trouble.unreachable:
            return as_failure(WorkerLost(trouble.message))
        message = trouble.message
        if trouble.status == 404:
            gone = server.models and server.model not in server.models
            message = unknown(server.link, server.model, server.models) if gone else message
        message = server.link.scrub(message)
        if trouble.status in _REJECTED and not trouble.retryable:
            return as_failure(Rejected(message))
        return Failure(kind="EngineError", message=message, retryable=trouble.retryable)

    # --- the server ---

    def _link(self, base_url: str) -> Link:
        options = self.options
        limits = AnswerLimits(line=options.line_bytes, answer=options.answer_bytes)
        return Link(base_url, options.api_key_env, self.slots, limits)

    async def _reachable(self) -> bool:
        """Whether the server accepts connections, even if it is slow or refuses requests."""
        sender = self._sender
        if sender is None:
            return False
        for _ in range(2):  # the first may have found a connection that had gone stale
            try:
                await sender.server.link.get("models", seconds=10.0)
            except ServerError as trouble:
                if trouble.status in (502, 503, 504) or trouble.unreachable:
                    continue
            return True
        return False

    async def _look_again(self) -> bool:
        """Look at a server whose connections broke: it may have been started anew, with another model."""
        sender = self._sender
        if sender is None:
            return False
        old = sender.server
        try:
            async with asyncio.timeout(self.options.start_timeout):
                if await unchanged(old):
                    return True
                new = await probe(self._link, old.link.base_url, self.model, self.options.endpoint)
        except (ServerError, EngineError, TimeoutError) as trouble:
            log.warning("%s came back and cannot be used yet: %s", self.base_url, trouble or "it does not answer")
            return False
        if self._sender is not sender:
            await new.link.close()
            return False
        log.warning("%s serves another model now (%s): its token ids are not used", self.base_url, new.model)
        self._use(replace(new, dialect=replace(new.dialect, ids=False, priority=False)))
        return True

    def _give_up(self, why: Failure) -> None:
        for live in self._live.values():
            live.why = why
            if live.task is not None:
                live.task.cancel()
