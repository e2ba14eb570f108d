"""A model worker for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one.

Decides how a think step becomes requests, when one is tried again and how many are out at a time. It does not know what
the text means, which step comes next, or what server it is beyond what the server was found to take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import stamina

from orchestrator.core.base import Progress, Worker
from orchestrator.core.errors import ConfigError, EngineError, WorkerLost, as_failure
from orchestrator.core.events import Job
from orchestrator.core.ir import Failure, Kind, Result, Text, Think, Tokens

from ._http_gate import Gate, Verdict
from ._http_link import Link
from ._http_probe import Server, answer, probe, single, tokenise, unknown
from ._http_wire import Reading, Trouble, body
from ._stream import Stream

__all__ = ["Http"]

log = logging.getLogger("plait.http")
# stamina reports each retry as a warning without a cause; ours are told by `log`.
logging.getLogger("stamina").addFilter(
    lambda record: not str(getattr(record, "stamina.caused_by", "")).startswith(f"{Trouble.__name__}(")
)

LONGEST_WAIT = 60.0
"""Seconds; a server that asks to wait longer than this is left to the machine's own retries."""
REMEMBERED = 4096
"""Pieces of text whose token ids are kept."""


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

    def partial(self) -> Result:
        """What was generated before it was cancelled."""
        return self.reading.result("cancelled") if self.reading else Result(value="", finish="cancelled")


class Http(Worker):
    """An OpenAI-compatible server, over HTTP.

    `start` asks the server for one token to find out what it takes: token ids (prompts and continued contexts then go
    as ids, as with an engine in this process), text completions, or chat completions alone. Answers are always
    streamed, so that giving up a step closes its connection and the server stops generating.

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
    ) -> None:
        """Describe the server; nothing is sent before `start`.

        `base_url`: the address that ends in `/v1`. `model`: by default the first that the server lists. `slots`: most
        requests at the same time; fewer while the server says that it is overloaded. `api_key_env`: the environment
        variable that holds the key, by default OPENAI_API_KEY, which need not be set. `retries` of a request that the
        server turned away or that broke off before its first token, the first after about `backoff` seconds, then each
        twice as long, unless the server says how long (`Retry-After`). `timeout`: longest silence within an answer,
        `start_timeout`: longest start, `ping_every`: time between checks that the server is there, all in seconds.

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
        if slots < 1 or retries < 0 or backoff < 0 or min(timeout, start_timeout, ping_every) <= 0:
            raise ConfigError("the http worker needs slots >= 1, retries and backoff >= 0, and times above 0")
        self.base_url, self.model, self.name, self.slots = base_url.rstrip("/"), model, name, slots
        self.api_key_env, self.retries, self.backoff = api_key_env, retries, backoff
        self.timeout, self.start_timeout, self.ping_every = timeout, start_timeout, ping_every
        self.counts = {"requests": 0, "retries": 0, "overloaded": 0, "generated": 0, "prompt": 0, "cached": 0}
        """Since it was made: requests sent, those sent again, those turned away as too many (429, 503), and tokens."""
        self._server: Server | None = None
        self._gate = Gate(slots)
        self._live: dict[int, Live] = {}
        self._ids: dict[tuple[str, bool], tuple[int, ...]] = {}
        self._stops: dict[str, int | None] = {}
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
                        self._server = await probe(self._link, self.base_url, self.model)
        except Trouble as trouble:
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
        live = self._live[job.attempt] = Live(job, think, Stream(quiet=not think.stream))
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
            end: Result | Failure = await self._tried(live, server)
        except asyncio.CancelledError:
            end = live.why or live.partial()
        except EngineError as error:
            end = as_failure(error)
        except Trouble as trouble:
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
                    return await self._once(live, server, chat or (live.think.chat and self._template))
                except Trouble as trouble:
                    if chat or trouble.status not in (400, 422, 500) or "chat template" not in trouble.message:
                        raise
                # A model without a chat template: the prompt is plain text, as it is for an engine in this process.
                self._template = False
                return await self._once(live, server, False)
        raise AssertionError("the retries ended without an end")

    async def _once(self, live: Live, server: Server, chat: bool) -> Result:
        """Send one request and read its answer."""
        prompt = await self._prompt(server, live.think, chat)
        dialect = replace(server.dialect, endpoint="chat/completions") if chat else server.dialect
        fields = body(dialect, server.model, live.think, prompt, chat)
        if dialect.ids and live.think.sampling.stop:
            fields["stop_token_ids"] = [
                token for stop in live.think.sampling.stop if (token := await self._single(server, stop)) is not None
            ]
        round_ = await self._gate.enter()
        verdict: Verdict = "neither"
        try:
            self.counts["requests"] += 1
            reading = live.reading = Reading(dialect, live.think)
            async with contextlib.aclosing(answer(server.link, dialect, fields, chat)) as chunks:
                async for chunk in chunks:
                    progress = reading.feed(chunk)
                    if progress is not None:
                        live.stream.push(progress)
                    if reading.stopped_here:
                        break
            verdict = "served"
        except Trouble as trouble:
            if trouble.status in (429, 503):
                verdict = "overloaded"
                self.counts["overloaded"] += 1
            if trouble.status is None and trouble.retryable:
                self._suspect.set()  # the connection, not an answer: look whether the server is still there
            raise
        finally:
            self._gate.leave(round_, verdict)
        if reading.finish is None:
            raise Trouble(
                f"{server.link.base_url} broke an answer off after {reading.count} tokens: try again", retryable=True
            )
        return await self._stripped(live.think, server, reading)

    async def _stripped(self, think: Think, server: Server, reading: Reading) -> Result:
        """Return the result without the ids of a stop token or text that was not to be kept, as vLLM leaves them."""
        result = reading.result(reading.finish or "stop")
        if not result.token_ids or result.finish != "stop" or think.sampling.keep_stop:
            return result
        if not isinstance(reading.stop, str):
            return result.model_copy(update={"token_ids": result.token_ids[:-1]})
        with contextlib.suppress(Trouble):
            stop = await self._tokens(server, reading.stop, False)
            if stop and result.token_ids[-len(stop) :] == stop:
                return result.model_copy(update={"token_ids": result.token_ids[: -len(stop)]})
        # The stop text shares a token with the text before it: the context goes on as text.
        return result.model_copy(update={"prompt_ids": (), "token_ids": ()})

    async def _prompt(self, server: Server, think: Think, chat: bool) -> str | list[int]:
        """Return the prompt as the server takes it."""
        parts = think.prompt
        texts = [part.text for part in parts if isinstance(part, Text)]
        if len(texts) == len(parts) and (chat or not server.dialect.ids or len(parts) == 1):
            return "".join(texts)
        if chat or not server.dialect.ids:
            what = "a chat prompt" if chat else f"{server.link.base_url}"
            raise EngineError(f"{what} takes no token ids: give the prompt as text, or use a vLLM server")
        ids: list[int] = []
        for place, part in enumerate(parts):
            if isinstance(part, Tokens):
                ids += part.ids
            elif isinstance(part, Text):
                ids += await self._tokens(server, part.text, place == 0)
        if not ids:
            raise EngineError("the prompt has no tokens: give it some text")
        return ids

    async def _tokens(self, server: Server, text: str, opening: bool) -> tuple[int, ...]:
        """Return a text's token ids, and remember them."""
        ids = self._ids.get((text, opening))
        if ids is None:
            ids = tuple(await tokenise(server.link, server.model, text, opening))
            if len(self._ids) >= REMEMBERED:
                del self._ids[next(iter(self._ids))]
            self._ids[text, opening] = ids
        return ids

    async def _single(self, server: Server, stop: str) -> int | None:
        """Return the id of a stop text that is one token: the server then stops on it at once, and cuts it as a token,
        as an engine in this process does."""
        if stop not in self._stops:
            try:
                token = await single(server.link, server.model, stop)
            except Trouble as trouble:
                if trouble.status is None:
                    raise
                token = None  # it has no /detokenize: it then looks for the text alone
            if len(self._stops) >= REMEMBERED:
                self._stops.clear()
            self._stops[stop] = token
        return self._stops[stop]

    def _attempts(self, again: Callable[[Trouble], bool]) -> AsyncIterator[stamina.Attempt]:
        """Count attempts, with growing waits between them: the next one comes after a retryable `Trouble` that `again`
        agrees to."""

        def wait(error: Exception) -> bool | float:
            if not isinstance(error, Trouble) or not error.retryable or not again(error):
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

    def _again(self, live: Live, trouble: Trouble) -> bool:
        """Whether a request may be sent again: nothing was generated yet, and the wait fits into the time left."""
        if live.reading is not None and live.reading.count:
            return False
        left = live.job.seconds
        return left is None or (trouble.retry_after or 0.0) <= left

    def _failure(self, trouble: Trouble, server: Server) -> Failure:
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
            except Trouble as trouble:
                if trouble.status in (502, 503, 504) or trouble.unreachable:
                    continue
            return True
        return False

    def _give_up(self, why: Failure) -> None:
        for live in self._live.values():
            live.why = why
            if live.task is not None:
                live.task.cancel()
