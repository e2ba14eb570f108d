"""A model worker for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one.

Decides how a think step becomes requests, when one is tried again and how many are out at a time. It does not know what
the text means, which step comes next, or what server it is beyond what the server was found to take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import stamina

from plait.core.errors import ConfigError, EngineError, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.plan import Kind, Think
from plait.core.result import Failure, Result, Usage, as_failure

from .._shared.streams import Stream, together
from .connection import Link
from .limiter import Gate, Verdict
from .probe import Server, answer, probe, unknown
from .prompts import Prompts
from .tools import Offers
from .wire import Reading, ServerError, body

__all__ = ["Http"]

log = logging.getLogger("plait.http")
# stamina reports each retry as a warning without a cause; ours are told by `log`.
logging.getLogger("stamina").addFilter(
    lambda record: not str(getattr(record, "stamina.caused_by", "")).startswith(f"{ServerError.__name__}(")
)

LONGEST_WAIT = 60.0
"""Seconds; a server that asks to wait longer than this is left to the machine's own retries."""


@dataclass(slots=True, eq=False)
class Live:
    """A job on its way."""

    job: Job
    think: Think
    stream: Stream
    reading: Reading | None = None
    task: asyncio.Task[None] | None = None
    why: Failure | None = None
    """Set when the worker itself gives the job up."""
    resumed: bool = False
    """Its answer broke off, and a further request goes on where it did. That is done once."""
    stuck: bool = False
    """Its answer broke off where no other request can go on."""
    whole: bool = False
    """Its answer is on its way and comes in one piece: until then the server says nothing of it."""
    untold: list[Progress] = field(default_factory=list[Progress])
    """News of a job that does not stream, until its group of confidence is due."""

    def partial(self) -> Result:
        """What was generated before it was cancelled, as far as the server said."""
        result = self.reading.result("cancelled") if self.reading else Result(value="", finish="cancelled")
        if self.whole:
            result = result.model_copy(update={"usage": result.usage + Usage(uncounted=1)})
        return result


class Http(Worker):
    """An OpenAI-compatible server, over HTTP.

    `start` asks the server for one token to find out what it takes: token ids (prompts and continued contexts then go
    as ids, as with an engine in this process), text completions, or chat completions alone. Giving up a step closes its
    connection, and the server stops generating. Answers are streamed, but for short ones that nobody follows (`whole`):
    of those that were given up the server never says how much it had generated (`Usage.uncounted`).

    Where the server takes token ids, an answer that broke off goes on from its ids (once), and so does a job with
    `generated` ids; `logprob` and `signals` are then those of the new tokens. Where that cannot be (a text that may be
    the beginning of a stop text, half a character, a form, a chat), the job starts from the beginning.

    Without token ids `usage` counts a token for each piece of text until the server says how many there were.
    """

    serves: tuple[Kind, ...] = ("think",)

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        name: str = "http",
        slots: int = 32,
        api_key_env: str | None = None,
        retries: int = 5,
        backoff: float = 0.25,
        timeout: float = 300.0,
        start_timeout: float = 30.0,
        ping_every: float = 5.0,
        whole: int = 512,
    ) -> None:
        """Describe the server; nothing is sent before `start`.

        `base_url`: the address that ends in `/v1`. `model`: by default the first that the server lists. `slots`: most
        requests at the same time; fewer while the server says that it is overloaded. `api_key_env`: the name of the
        environment variable that holds the key, by default OPENAI_API_KEY, which need not be set. `retries` of a
        request that the server turned away or that broke off, the first after about `backoff` seconds, then each twice
        as long, unless the server says how long (`Retry-After`). `timeout`: longest silence within an answer,
        `start_timeout`: longest start, `ping_every`: time between checks that the server is there, all in seconds.
        `whole`: steps of at most so many tokens whose text nobody follows get their answer in one piece; 0 for none.

        Raises `ConfigError`.
        """
        try:
            parts = urlsplit(base_url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            parts, known = None, False
        if parts is None or not known:
            raise ConfigError("base_url is no address of a server: give one such as http://localhost:8000/v1")
        if parts.username or parts.password or parts.query:
            raise ConfigError("base_url holds more than an address: keys go into the environment (see api_key_env)")
        if api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", api_key_env):
            raise ConfigError(
                "api_key_env is not the name of an environment variable: put the key itself into one, and give its name"
            )
        if slots < 1 or min(retries, backoff, whole) < 0 or min(timeout, start_timeout, ping_every) <= 0:
            raise ConfigError("the http worker needs slots >= 1, retries, backoff and whole >= 0, and times above 0")
        self.base_url, self.model, self.name, self.slots = base_url.rstrip("/"), model, name, slots
        self.api_key_env, self.retries, self.backoff = api_key_env, retries, backoff
        self.timeout, self.start_timeout, self.ping_every = timeout, start_timeout, ping_every
        self.whole = whole
        self.counts = {"requests": 0, "retries": 0, "overloaded": 0, "generated": 0, "prompt": 0, "cached": 0}
        """Since it was made: requests sent, those sent again, those turned away as too many (429, 503), and tokens."""
        self.models: tuple[str, ...] = ()
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self._server: Server | None = None
        self._gate = Gate(slots)
        self._live: dict[int, Live] = {}
        self._prompts = Prompts()
        self._offers = Offers()
        self._template = True
        self._suspect = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Find out what the server takes. Raises `EngineError` with the cause, within `start_timeout` seconds."""
        if self._server is not None:
            return
        self._gate, self._closed, self._suspect = Gate(self.slots), False, asyncio.Event()
        try:
            async with asyncio.timeout(self.start_timeout):
                async for attempt in self._attempts(lambda trouble: not trouble.unreachable):
                    with attempt:
                        server = self._server = await probe(self._link, self.base_url, self.model)
                        self.models = server.models
        except ServerError as trouble:
            raise EngineError(trouble.message) from None
        except TimeoutError:
            raise EngineError(
                f"{self.base_url} did not answer within {self.start_timeout:g} s: check the address, and whether the "
                "server has loaded its model"
            ) from None

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Generate for one think step: deltas if it streams, then the result."""
        think = job.op
        if self._server is None or self._closed:
            yield as_failure(WorkerLost(f"worker {self.name!r} is not running"))
            return
        if not isinstance(think, Think):
            yield as_failure(EngineError(f"worker {self.name!r} serves think steps, not {think.kind!r} steps"))
            return
        live = self._live[job.attempt] = Live(job, think, Stream())
        task = live.task = asyncio.create_task(self._serve(live, self._server))
        task.add_done_callback(lambda _: live.stream.push(live.why or live.partial()))  # if it was not even begun
        try:
            async for item in live.stream:
                yield item
        finally:
            if self._live.get(job.attempt) is live:
                del self._live[job.attempt]
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def cancel(self, attempt: int) -> None:
        """Close the request's connection; its stream then ends with what was generated."""
        live = self._live.get(attempt)
        if live is not None and live.task is not None:
            live.task.cancel()

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True`, then `False` whenever the server cannot be reached and `True` when it can again."""
        up = True
        if self._closed:
            return
        yield up
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspect.wait(), self.ping_every if up else min(1.0, self.ping_every))
            self._suspect.clear()
            there = not self._closed and await self._reachable()
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
        server, self._server = self._server, None
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.link.close()

    def stats(self) -> dict[str, float]:
        """Return `counts`, the jobs `running`, and the `limit` on requests at the same time."""
        return {**self.counts, "running": len(self._live), "limit": self._gate.limit}

    # --- one job ---

    async def _serve(self, live: Live, server: Server) -> None:
        """Do one job and push its end."""
        try:
            server = self._serving(server, live.think)
            end: Result | Failure = await self._tried(live, server)
        except asyncio.CancelledError:
            end = live.why or live.partial()
        except EngineError as error:
            end = as_failure(error)
        except ServerError as trouble:
            end = self._failure(trouble, server)
        except Exception as error:  # of a library: it fails this job and nothing else
            said = server.link.scrub(f"{type(error).__name__}: {error}")
            end = as_failure(EngineError(f"the request to {server.link.base_url} failed: {said}"))
        if live.reading is not None:
            usage = live.reading.result("stop").usage
            self.counts["generated"] += max(usage.completion, live.reading.count)
            self.counts["prompt"] += usage.prompt
            self.counts["cached"] += usage.cached
        live.stream.push(end)

    async def _tried(self, live: Live, server: Server) -> Result:
        """Send the request until it is served, or until it is no use."""
        chat = server.dialect.endpoint == "chat/completions"
        async for attempt in self._attempts(lambda trouble: self._again(live, trouble)):
            with attempt:
                self.counts["retries"] += attempt.num > 1
                try:
                    return await self._offered(live, server, chat or (live.think.chat and self._template))
                except ServerError as trouble:
                    if chat or trouble.status not in (400, 422, 500) or "chat template" not in trouble.message:
                        raise
                # A model without a chat template: the prompt is plain text, as it is for an engine in this process.
                self._template = False
                return await self._once(live, server, False)
        raise AssertionError("the retries ended without an end")

    def _serving(self, server: Server, think: Think) -> Server:
        """Return the server with the model that the step asks for. Raises `EngineError`."""
        if think.model is None or think.model == server.model:
            return server
        if server.models and think.model not in server.models:
            raise EngineError(unknown(server.link, think.model, server.models))
        return replace(server, model=think.model)

    async def _offered(self, live: Live, server: Server, chat: bool) -> Result:
        """Send one request, again with less when the server refuses the functions that it offers."""
        while True:
            offer = self._offers.fields(server.model, live.think, chat)
            try:
                return await self._once(live, server, chat, offer)
            except ServerError as trouble:
                begun = live.reading is not None and not live.reading.fresh
                if begun or not self._offers.refused(server.model, offer, trouble):
                    raise

    async def _once(
        self, live: Live, server: Server, chat: bool, offer: Mapping[str, Any] = MappingProxyType({})
    ) -> Result:
        """Send one request and read its answer."""
        begun = await self._begin(live, server, chat)
        if isinstance(begun, Result):
            return begun
        prompt, past, reading = begun
        chat = chat and not live.resumed  # by the ids that the server said, its template's words among them
        dialect = replace(server.dialect, endpoint="chat/completions") if chat else server.dialect
        form = {**await self._prompts.form(server, live.think, chat), **offer}
        priority = live.job.priority
        fields = body(dialect, server.model, live.think, prompt, chat, past=past, priority=priority, form=form)
        if dialect.ids and live.think.sampling.stop:
            fields["stop_token_ids"] = [*live.think.sampling.stop_ids, *await self._prompts.singles(server, live.think)]
        whole = not (live.think.stream or live.think.sampling.window) and live.think.sampling.max_tokens <= self.whole
        if whole:
            # A line for every token costs the server and us more than a small model's token itself.
            fields["stream"] = False
            fields.pop("stream_options", None)
        round_ = await self._gate.enter()
        verdict: Verdict = "neither"
        try:
            self.counts["requests"] += 1
            live.whole = whole
            async with contextlib.aclosing(answer(server.link, dialect, fields, chat)) as chunks:
                async for chunk in chunks:
                    live.whole = False
                    progress = reading.feed(chunk)
                    if progress is not None:
                        self._tell(live, reading, progress)
                    if reading.stopped_here:
                        break
            verdict = "served"
        except ServerError as trouble:
            if trouble.status in (429, 503):
                verdict = "overloaded"
                self.counts["overloaded"] += 1
            if trouble.status is None and trouble.retryable:
                self._suspect.set()  # the connection, not an answer: look whether the server is still there
            raise
        finally:
            self._gate.leave(round_, verdict)
        if reading.finish is None:
            raise ServerError(
                f"{server.link.base_url} broke an answer off after {reading.count} tokens: try again", retryable=True
            )
        return await self._prompts.stripped(live.think, server, reading)

    async def _begin(self, live: Live, server: Server, chat: bool) -> tuple[str | list[int], int, Reading] | Result:
        """Return the prompt to send, how many of its tokens were generated before, and what reads the answer; or the
        result, if those end it already."""
        think, generated, reading = live.think, live.job.generated, live.reading
        if reading is not None and live.resumed:
            if not reading.fresh:
                text = await self._prompts.text_after(server, think, reading.prompt_ids, reading.past)
                if text is None:
                    live.stuck = True
                    raise ServerError(f"{server.link.base_url} broke an answer off: try again", retryable=True)
                reading.go_on(text)
            return [*reading.prompt_ids, *reading.ids], len(reading.ids), reading
        by_ids = server.dialect.ids and not chat and think.sampling.structured is None
        dialect = replace(server.dialect, endpoint="chat/completions") if chat else server.dialect
        reading = live.reading = Reading(dialect, think, tells=by_ids and not generated)
        if generated and by_ids:
            prompt = await self._prompts.prompt_ids(server, think)
            text = await self._prompts.text_after(server, think, prompt, generated)
            if text is not None:
                ended = await self._prompts.ended(server, think, prompt, generated, text)
                if ended is not None:
                    live.reading = None
                    return ended
                # As much of it has been shown as the server shows while a stop text may begin at the end.
                held = 0 if think.sampling.keep_stop else max(map(len, think.sampling.stop), default=1) - 1
                reading.take_up(prompt, generated, text, max(0, len(text) - held))
                return [*prompt, *generated], len(generated), reading
        return await self._prompts.prompt(server, think, chat), 0, reading

    def _tell(self, live: Live, reading: Reading, progress: Progress) -> None:
        """Pass on what is new: all of it where the step streams, else now and then how confident it is."""
        if live.think.stream:
            live.stream.push(progress)
        elif live.think.sampling.window:
            live.untold.append(progress)
            if reading.due():
                live.stream.push(replace(together(live.untold), text=""))
                live.untold.clear()

    def _attempts(self, again: Callable[[ServerError], bool]) -> AsyncIterator[stamina.Attempt]:
        """Count attempts, with growing waits between them. The next one comes after a retryable `ServerError`, if
        `again` agrees."""

        def wait(error: Exception) -> bool | float:
            if not isinstance(error, ServerError) or not error.retryable or not again(error):
                return False
            log.info("%s: %s", self.name, error.message)
            if error.retry_after is None:
                return True
            # The jitter comes on top: all who were told the same would else come back at once, and never sooner.
            return error.retry_after <= LONGEST_WAIT and error.retry_after + random.uniform(0.001, 0.001 + self.backoff)

        return aiter(
            stamina.retry_context(
                wait, attempts=self.retries + 1, timeout=None, wait_initial=self.backoff, wait_jitter=self.backoff / 2
            )
        )

    def _again(self, live: Live, trouble: ServerError) -> bool:
        """Whether a further request may be sent: nothing was generated yet, or it can go on after that; and the wait
        fits into the time left."""
        reading = live.reading
        if reading is not None and not reading.fresh:
            if live.resumed or live.stuck or not reading.past or live.think.tools:
                return False
            if live.think.sampling.structured is not None:
                return False
            live.resumed = True
        left = live.job.seconds
        return left is None or (trouble.retry_after or 0.0) <= left

    def _failure(self, trouble: ServerError, server: Server) -> Failure:
        if trouble.unreachable:
            return as_failure(WorkerLost(trouble.message))
        message = trouble.message
        if trouble.status == 404:
            gone = server.models and server.model not in server.models
            message = unknown(server.link, server.model, server.models) if gone else message
        return Failure(kind="EngineError", message=server.link.scrub(message), retryable=trouble.retryable)

    # --- the server ---

    def _link(self, base_url: str) -> Link:
        return Link(base_url, self.api_key_env, self.slots, self.timeout)

    async def _reachable(self) -> bool:
        """Whether the server accepts connections. One that is slow is there; so is one that refuses."""
        server = self._server
        if server is None:
            return False
        for _ in range(2):  # the first may have found a connection that had gone stale
            try:
                await server.link.get("models", seconds=10.0)
            except ServerError as trouble:
                if trouble.status in (502, 503, 504) or trouble.unreachable:
                    continue
            return True
        return False

    def _give_up(self, why: Failure) -> None:
        for live in self._live.values():
            live.why = why
            if live.task is not None:
                live.task.cancel()
