"""A model worker for any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from plait.core.errors import ContextOverflow, EngineError, Rejected, WorkerLost
from plait.core.events import Job
from plait.core.interfaces import CacheUpdate, Tell
from plait.core.ops import Kind, ModelCall
from plait.core.result import Failure, Result, as_failure

from .._shared.batch_streams import CallbackWorker, Reporter
from .._shared.kv_events import KvEvents
from .._shared.options import build_options, takes
from .connection import DEFAULT_KEY_VARIABLE, ResponseLimits, ServerConnection
from .flow_control import OVERLOADED, ConcurrencyLimiter
from .options import DEFAULT_SLOTS, HttpOptions, check_address
from .request_body import ServerError
from .request_sender import REPORT_TOKENS, LiveJob, RequestSender, log
from .server_probe import ServerInfo, describe_unknown_model, is_unchanged, probe_server

__all__ = ["Http", "ResponseLimits", "ServerConnection", "ServerError"]

_REJECTED_STATUSES = (400, 413, 415, 422)
"""Statuses of a request that is invalid in itself: no other attempt can succeed."""
_CONTEXT_EXCEEDED = re.compile(r"context[ _](len|size|window)|prompt is too long|inputs?` must have less", re.I)
"""Parts of the messages of OpenAI, vLLM, SGLang, llama.cpp and TGI about a prompt that is longer than the context."""
_HEALTH_TIMEOUT_S = 10.0


class UnreachableServer(EngineError):
    """The server does not answer, and may later."""

    code = "unreachable"
    retryable = True


@takes(HttpOptions)
class Http(CallbackWorker):
    """An OpenAI-compatible server, over HTTP.

    `start` requests one token to find what the server takes: token ids, text completions, or chat completions alone. A
    server of token ids gets prompts and continued contexts as ids, as an engine in this process does.
    Cancelling a step closes its connection, and the server stops generating. Responses are streamed, except short ones
    without readers (`stream_above_tokens`).

    If the server takes token ids, a response that broke off is resumed from its ids, once, and so is a job with
    `generated` ids; `logprob` and `signals` then cover the new tokens only. The job starts over if its ids cannot be
    continued: after half a character or the possible beginning of a stop text, with a form, in a chat. If the
    server returns with another model, old ids are not used: they would mean other words.

    Without token ids `usage` counts one token per piece of text until the server reports its count. A response is cut
    at its `max_tokens`, whatever the server does. The key is replaced by `***` wherever a server repeats it.
    """

    serves: tuple[Kind, ...] = ("think",)
    allow_unreachable: bool = False
    """Whether `start` succeeds while the server cannot be reached. The worker is then down until the server answers."""
    reports: int | None = REPORT_TOKENS
    Options: ClassVar[type[HttpOptions]]

    def __init__(self, base_url: str, **options: Any) -> None:
        """Configure the worker; nothing is sent before `start`. The keywords are the fields of `HttpOptions`.

        Raises `ConfigError`.
        """
        check_address(base_url, options.get("api_key_env"))
        given = build_options(HttpOptions, "http", {"base_url": base_url.rstrip("/"), **options})
        self.options, self.base_url, self.model = given, given.base_url, given.model
        self.name, self.slots = given.name, given.slots or DEFAULT_SLOTS
        self.counts = {"requests": 0, "retries": 0, "overloaded": 0, "generated": 0, "prompt": 0, "cached": 0}
        """Totals: requests sent, retries, rejections of an overloaded server (429, 503), tokens."""
        self.models: tuple[str, ...] = ()
        self.cache_tokens: int | None = None
        self.block: int | None = None
        self.identity = ""
        self.hints = given.hints != "none"
        self._sender: RequestSender | None = None
        self._connections: list[ServerConnection] = []
        """All opened connections: a running job keeps its own when the server returns with another model."""
        self._limiter = ConcurrencyLimiter(self.slots)
        self._live: dict[int, LiveJob] = {}
        self._suspect = asyncio.Event()
        self._is_closed = False
        self._warned = False
        """Whether the log has the reason why the server, probed later, could not be used."""
        self._events = KvEvents(given.kv_events) if given.kv_events else None

    @property
    def tenant(self) -> str:
        """A digest of the key, empty without one. Cached results are shared within a tenant only."""
        key = os.environ.get(self.options.api_key_env or DEFAULT_KEY_VARIABLE, "").strip()
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key else ""

    @property
    def has_answered(self) -> bool:
        """Whether the server has answered since the start: its models are known only then."""
        return self._sender is not None

    @property
    def takes_salt(self) -> bool:
        """Whether the server isolates the prefix cache of requests by their salt, as far as that is known."""
        return self._sender is None or self._sender.server.dialect.ids

    async def start(self) -> None:
        """Probe the server. Raises `EngineError` with the cause, within `start_timeout` seconds."""
        if self._sender is not None:
            return
        self._limiter, self._is_closed, self._suspect = ConcurrencyLimiter(self.slots), False, asyncio.Event()
        try:
            await self._probe_first()
        except UnreachableServer as error:
            if not self.allow_unreachable:
                raise EngineError(str(error)) from None
            log.warning("%s does not answer yet, and is taken in when it does: %s", self.name, error)

    async def _probe_first(self) -> None:
        """Probe the server until it answers. Raises `EngineError`; if it may answer later, `UnreachableServer`."""
        timeout_s, wait_s = self.options.start_timeout, self.options.backoff
        try:
            async with asyncio.timeout(timeout_s):
                for left in range(self.options.retries, -1, -1):
                    try:
                        self._use_server(
                            await probe_server(self._connect, self.base_url, self.model, self.options.endpoint)
                        )
                        return
                    except ServerError as error:
                        # An address without a server is a mistake more often than a server that is just starting.
                        if error.unreachable or not error.retryable or not left:
                            later = error.unreachable or error.retryable
                            raise (UnreachableServer if later else EngineError)(error.message) from None
                        log.info("%s: %s", self.name, error.message)
                        await asyncio.sleep(max(wait_s, error.retry_after or 0.0))
                        wait_s *= 2
        except TimeoutError:
            raise UnreachableServer(
                f"{self.base_url} did not answer within {timeout_s:g} s: check the address, and whether the server has "
                "loaded its model"
            ) from None
        finally:
            if self._events is not None and self._sender is not None:
                self._events.start()

    async def _probe_later(self) -> bool:
        """Probe a server that did not answer at the start."""
        try:
            await self._probe_first()
        except UnreachableServer:
            return False
        except EngineError as error:
            if not self._warned:  # once: the server is probed every second
                self._warned = True
                log.warning("%s answers now and cannot be used: %s", self.name, error)
            return False
        return not self._is_closed

    def _use_server(self, server: ServerInfo) -> None:
        """Send jobs to this server from now on."""
        self.models, self.identity = server.models, server.identity
        if self.options.slots is None and server.slots and self._sender is None:
            # A quarter more (rounded up) than it serves at once: its next request then waits there, not on the network.
            self.slots = min(DEFAULT_SLOTS, server.slots + -(-server.slots // 4))
            self._limiter = ConcurrencyLimiter(self.slots)
        self._connections.append(server.connection)
        self._sender = RequestSender(self.options, server, self._limiter, self.counts, self._suspect)

    def begin(self, job: Job, tell: Tell) -> None:
        """Generate for one model call: report deltas if it streams, then the result."""
        think, sender = job.op, self._sender
        if sender is None or self._is_closed:
            tell(as_failure(WorkerLost(f"worker {self.name!r} is not running")))
            return
        if not isinstance(think, ModelCall):
            tell(as_failure(EngineError(f"worker {self.name!r} serves think steps, not {think.kind!r} steps")))
            return
        live = self._live[job.attempt] = LiveJob(job, think, Reporter(tell).push)
        live.task = asyncio.create_task(self._serve(live, sender))
        live.task.add_done_callback(lambda _: self._forget_job(live, sender))

    def _forget_job(self, live: LiveJob, sender: RequestSender) -> None:
        """Remove a finished job. A task that was cancelled before it ran has reported no end, so this reports one."""
        if self._live.get(live.job.attempt) is live:
            del self._live[live.job.attempt]
        live.report(live.abort_reason or sender.close_cancelled(live))

    async def cancel(self, attempt: int) -> None:
        """Close the request's connection; the job then ends with what was generated."""
        live = self._live.get(attempt)
        if live is not None and live.task is not None:
            live.task.cancel()

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Return the tokens of a prompt that is sent as ids; `None` for a chat, whose template only the server has."""
        return await self._sender.count_prompt_tokens(op) if self._sender is not None else None

    async def forward(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any] | Failure:
        """Post a request to the server as it is, or send a GET if it has no fields, and return the answer. `model` is
        the worker's by default; a `path` with a leading slash is relative to the server's root, else to the
        address."""
        if self._sender is None:
            return as_failure(WorkerLost(f"worker {self.name!r} is not running"))
        server = self._sender.server
        url = f"{server.connection.root_url}{path}" if path.startswith("/") else path
        permit, outcome = await self._limiter.acquire(), "neither"
        try:
            connection, limit_s = server.connection, self.options.total_timeout
            if fields:
                answer = await connection.post(url, {"model": server.model, **fields}, limit_s)
            else:
                answer = await connection.get(url, limit_s)
            outcome = "served"
        except ServerError as error:
            outcome = "overloaded" if error.status in OVERLOADED else "neither"
            if error.status in (404, 405) and path.startswith("/"):
                error = ServerError(f"{url} does not exist: this server has no {path}", status=400)
            return self._build_failure(error, server)
        finally:
            self._limiter.release(permit, outcome)
        return answer if isinstance(answer, dict) else as_failure(EngineError(f"{url} did not return a JSON object"))

    async def cache_news(self) -> AsyncIterator[CacheUpdate]:
        """Yield the changes of the server's prefix cache (`kv_events`)."""
        if self._events is not None:
            async for news in self._events.mailbox:
                yield news

    def follow_prompts(self, servers: Sequence[Http]) -> None:
        """Look the prompts that this server was sent up in the caches of other servers of its model, too."""
        if self._events is not None:
            self._events.others = [there._events for there in servers if there is not self and there._events]

    async def health(self) -> AsyncIterator[bool]:
        """Yield `True`, then `False` whenever the server becomes unreachable and `True` when it is reachable again."""
        is_up, interval_s = self._sender is not None, self.options.ping_every
        if self._is_closed:
            return
        yield is_up
        while True:
            # A server that is down is checked more often: its steps wait for it.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._suspect.wait(), interval_s if is_up else min(1.0, interval_s))
            has_broken = self._suspect.is_set()
            self._suspect.clear()
            if self._is_closed:
                return
            if self._sender is None:
                is_reachable = await self._probe_later()
            else:
                is_reachable = await self._is_reachable()
                if is_reachable and (has_broken or not is_up):
                    is_reachable = await self._probe_again()
            if self._is_closed:
                return
            if is_reachable != is_up:
                is_up = is_reachable
                if not is_up:
                    self._abort_jobs(as_failure(WorkerLost(f"{self.base_url} cannot be reached any more")))
                yield is_up

    async def close(self) -> None:
        """Cancel all jobs and close all connections."""
        self._is_closed = True
        self._suspect.set()
        connections, self._connections, self._sender = self._connections, [], None
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._events is not None:
            await self._events.close()
        for connection in connections:
            await connection.close()

    def stats(self) -> dict[str, float]:
        """Return `counts`, the jobs `running`, and the current `limit` on concurrent requests."""
        return {**self.counts, "running": len(self._live), "limit": self._limiter.limit}

    async def _serve(self, live: LiveJob, sender: RequestSender) -> None:
        """Do one job and report its end."""
        connection = sender.server.connection
        try:
            end: Result | Failure = await sender.send(live)
        except asyncio.CancelledError:
            end = live.abort_reason or sender.close_cancelled(live)
        except EngineError as error:
            end = as_failure(error)
        except ServerError as error:
            end = self._build_failure(error, sender.server)
        except Exception as error:  # raised by a library on what the server sent: it must fail this job alone
            reason = connection.redact(f"{type(error).__name__}: {error}")
            end = as_failure(EngineError(f"the request to {connection.base_url} failed: {reason}"))
        if isinstance(end, Failure):
            end = end.model_copy(update={"usage": live.spent})
        elif self._events is not None and end.prompt_ids:
            asked = live.think.model
            # vLLM hashes the blocks of a LoRA adapter with its name, and those of the base model without one.
            model = asked if asked is not None and asked != sender.server.model else ""
            self._events.add_prompt(live.job.attempt, end.prompt_ids, model, live.think.salt)
        sender.count_usage(live)
        live.report(end)

    def _build_failure(self, error: ServerError, server: ServerInfo) -> Failure:
        if error.unreachable:
            return as_failure(WorkerLost(error.message))
        message = error.message
        # vLLM answers 404 for an unknown model, other servers for an unknown endpoint.
        if error.status == 404 and server.models and server.model not in server.models:
            message = describe_unknown_model(server.connection, server.model, server.models)
        message = server.connection.redact(message)
        if error.status in _REJECTED_STATUSES and not error.retryable:
            return as_failure((ContextOverflow if _CONTEXT_EXCEEDED.search(message) else Rejected)(message))
        kind = "Overloaded" if error.status in OVERLOADED else "EngineError"
        return Failure(kind=kind, message=message, retryable=error.retryable)

    # --- the server ---

    def _connect(self, base_url: str) -> ServerConnection:
        options = self.options
        limits = ResponseLimits(line_bytes=options.line_bytes, response_bytes=options.answer_bytes)
        return ServerConnection(base_url, options.api_key_env, limits)

    async def _is_reachable(self) -> bool:
        """Whether the server accepts connections, even if it is slow or rejects requests."""
        sender = self._sender
        if sender is None:
            return False
        for _ in range(2):  # the first request may go into a pooled connection that the server has just closed
            try:
                await sender.server.connection.get("models", seconds=_HEALTH_TIMEOUT_S)
            except ServerError as error:
                # Statuses of a proxy whose server is down.
                if error.status in (502, 503, 504) or error.unreachable:
                    continue
            return True
        return False

    async def _probe_again(self) -> bool:
        """Probe a server whose connections broke: it may have been restarted with another model."""
        sender = self._sender
        if sender is None:
            return False
        old = sender.server
        try:
            async with asyncio.timeout(self.options.start_timeout):
                if await is_unchanged(old):
                    return True
                address = old.connection.base_url
                new = await probe_server(self._connect, address, self.model, self.options.endpoint)
        except (ServerError, EngineError, TimeoutError) as error:
            log.warning("%s is back and cannot be used yet: %s", self.base_url, error or "it does not answer")
            return False
        if self._sender is not sender:  # the worker was closed in the meantime
            await new.connection.close()
            return False
        log.warning("%s serves another model now (%s): its token ids are not used", self.base_url, new.model)
        # Contexts of running plans hold the old model's ids.
        self._use_server(replace(new, dialect=replace(new.dialect, ids=False, priority=False)))
        return True

    def _abort_jobs(self, reason: Failure) -> None:
        for live in self._live.values():
            live.abort_reason = reason
            if live.task is not None:
                live.task.cancel()
