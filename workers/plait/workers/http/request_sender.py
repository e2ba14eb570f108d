"""Send the requests of one job to an OpenAI-compatible server, read the responses, and report progress.

`RequestSender.send` is the loop of one job: build a request, transmit it, and let `next_request` decide what follows an
error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from plait.core.errors import CutInThoughts, EngineError
from plait.core.events import Job
from plait.core.interfaces import Progress, Tell
from plait.core.ops import ModelCall, Tokens
from plait.core.result import Failure, Result, Usage

from .._shared.arithmetic_codes import PROCESSOR
from .._shared.batch_streams import together
from .flow_control import (
    FREE_FAILURE_S,
    INVALID,
    MAX_SERVER_WAIT_S,
    OVERLOADED,
    AttemptState,
    ConcurrencyLimiter,
    Fail,
    Feature,
    Fresh,
    Outcome,
    Resuming,
    RetryContext,
    Send,
    SendAfter,
    Streaming,
    classify_error,
    next_request,
)
from .options import HttpOptions
from .prompt_encoder import PromptEncoder
from .request_body import Endpoint, RequestSpec, ServerError, build_body, merge_fields
from .response_parser import ResponseParser
from .routing_hints import ServingStack, build_hints, find_stack
from .server_probe import ServerInfo, describe_unknown_model, has_arithmetic_sampling
from .server_support import FormSupport, ThinkingSupport, ToolSupport
from .usage_meter import SentRequest, ThroughputEstimate

log = logging.getLogger("plait.http")

REPORT_TOKENS = 16
"""Tokens between two reports of a job that only a budget follows: a budget is overshot by at most one report."""
OFFLOAD_MESSAGES = 100
"""Number of messages from which a body is built on a thread, so that it does not block the loop."""
USAGE_TIMEOUT_S = 0.25
"""Time for the usage of a response that we have cut at a stop text."""
SLOW_RESPONSE_S = 30.0
"""Time without a token after which a warning is logged."""


@dataclass(slots=True, eq=False)
class LiveJob:
    """A running job."""

    job: Job
    think: ModelCall
    """What is still asked for: a form that the server refused is dropped from it."""
    report: Tell
    """Takes progress and the end."""
    task: asyncio.Task[None] | None = None
    abort_reason: Failure | None = None
    """Set when the worker itself aborts the job."""
    started_at: float = 0.0
    """Loop time."""
    state: Fresh | Resuming = field(default_factory=Fresh)
    response: ResponseParser | None = None
    request: SentRequest | None = None
    """The running request."""
    form_note: str = ""
    """Why the text need not have the form that was asked for."""
    unreported: list[Progress] = field(default_factory=list[Progress])
    """Progress of a job that does not stream, until its next report is due."""
    spent: Usage = field(default_factory=Usage)
    """Usage of its finished requests, failed ones included."""

    def charge(self, throughput: ThroughputEstimate, is_free: bool = False) -> None:
        """Charge the running request, unless the server rejected it."""
        if self.request is not None and not is_free:
            self.spent += self.request.measure(asyncio.get_running_loop().time(), throughput)
        self.request = None

    def observe_state(self) -> AttemptState:
        """Return the state of the attempt at an error."""
        response = self.response
        if response is None or response.usage.is_fresh:
            return self.state
        # Calls and forms have a state of their own at the server, which ids do not carry over. And a response that
        # broke off twice is likely to be what breaks the server: it is resumed once.
        has_grammar = bool(self.think.tools) or self.think.sampling.structured is not None
        can_resume = isinstance(self.state, Fresh) and bool(response.resumable_ids) and not has_grammar
        return Streaming(self.state.retries, can_resume)

    def seconds_left(self) -> float | None:
        """Return the rest of the job's time limit, if it has one."""
        limit = self.job.seconds
        return None if limit is None else limit - (asyncio.get_running_loop().time() - self.started_at)


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request, ready to be sent."""

    endpoint: Endpoint
    fields: dict[str, Any]
    headers: Mapping[str, str]
    max_tokens: int

    @property
    def is_streamed(self) -> bool:
        """Whether the response comes token by token."""
        return self.fields["stream"] is True


class RequestSender:
    """Sends the jobs of one server, as it was probed."""

    def __init__(
        self,
        options: HttpOptions,
        server: ServerInfo,
        limiter: ConcurrencyLimiter,
        counts: dict[str, int],
        suspect: asyncio.Event,
    ) -> None:
        """`suspect` is set when a connection broke, so that the worker checks whether the server is still there."""
        self.server = server
        self.throughput = ThroughputEstimate()
        self._options, self._limiter, self._counts, self._suspect = options, limiter, counts, suspect
        self._prompts, self._tools, self._forms = PromptEncoder(), ToolSupport(), FormSupport()
        self._thinking = ThinkingSupport(server.model, server.opens_thoughts)
        self._has_template = True
        self._has_arithmetic: bool | None = None
        """`None` until a step has asked for arithmetic sampling."""
        self._arithmetic_lock = asyncio.Lock()
        self._keeps_limits = server.dialect.limits
        self._has_warned = False
        self._stack: ServingStack = find_stack(options.hints, server.connection.owners, server.connection.base_url)

    # --- one job ---

    async def send(self, live: LiveJob) -> Result:
        """Do one job. Raises `ServerError` or `EngineError`."""
        server = self._choose_server(live.think)
        live.started_at = asyncio.get_running_loop().time()
        if live.think.sampling.arithmetic is not None and live.think.sampling.draws:
            await self._require_arithmetic()
        while True:
            chat = server.dialect.endpoint == "chat/completions" or (live.think.chat and self._has_template)
            tools = self._tools.build_fields(server.model, live.think, chat)
            try:
                result = await self._attempt(live, server, chat, tools)
            except ServerError as error:
                match next_request(live.observe_state(), error, self._retry_context(live, server, tools, error)):
                    case Fail(final):
                        raise final from None
                    case Send(without):
                        self._drop_feature(without, live, server, tools, error)
                    case SendAfter(seconds, state):
                        log.info("%s: %s", self._options.name, error.message)
                        live.state = state
                        self._counts["retries"] += 1
                        await asyncio.sleep(seconds)
                continue
            if result is None:
                continue
            is_bound = live.think.tools and live.think.tool_choice not in ("auto", "none")
            if is_bound and tools.get("tool_choice", "auto") == "auto":
                live.form_note = f"not held to a call: {server.connection.base_url} does not take tool_choice"
            return result.model_copy(update={"usage": live.spent, "why": live.form_note})

    def _retry_context(
        self, live: LiveJob, server: ServerInfo, tools: Mapping[str, Any], error: ServerError
    ) -> RetryContext:
        form, refused = live.think.sampling.structured, None
        is_chat_server = server.dialect.endpoint == "chat/completions"
        # In this order: an error about tools or the template may name the form too, and a form is the last to give up.
        if self._tools.is_refusal(tools, error):
            refused = "tools"
        elif (
            (error.status in INVALID and "chat template" in error.message)
            and not is_chat_server
            and (live.think.chat and self._has_template)
        ):
            refused = "chat template"
        elif form is not None and not form.required and error.status in INVALID:
            refused = "form"
        return RetryContext(
            max_retries=self._options.retries,
            backoff_s=self._options.backoff,
            jitter_s=random.uniform(0.0, self._options.backoff / 2),
            seconds_left=live.seconds_left(),
            refused=refused,
            required_form=form if form is not None and form.required else None,
        )

    def _drop_feature(
        self, feature: Feature, live: LiveJob, server: ServerInfo, tools: Mapping[str, Any], error: ServerError
    ) -> None:
        """Continue without a feature that the server refused."""
        match feature:
            case "tools":
                self._tools.learn_refusal(server.model, tools, error)
            case "chat template":
                # A base model has none: its prompt goes as plain text, as with an engine in this process.
                self._has_template = False
            case "form":
                form = live.think.sampling.structured
                kind = form.kind if form is not None else ""
                log.warning("%s: without the form %r, since %s", self._options.name, kind, error.message)
                live.form_note = f"not held to the form {kind!r}: {error.message}"
                sampling = live.think.sampling.model_copy(update={"structured": None})
                live.think = live.think.model_copy(update={"sampling": sampling})

    def close_cancelled(self, live: LiveJob) -> Result:
        """Return the result of a cancelled job: what the server had sent."""
        response = live.response
        result = response.close("cancelled") if response else Result(value="", finish="cancelled")
        return result.model_copy(update={"usage": live.spent})

    def count_usage(self, live: LiveJob) -> None:
        """Add a finished job to the worker's counts."""
        usage = live.spent
        self._counts["generated"] += usage.completion
        self._counts["prompt"] += usage.prompt
        self._counts["cached"] += usage.cached

    async def count_prompt_tokens(self, think: ModelCall) -> int | None:
        """Return the tokens of a prompt; `None` if only the server's chat template knows them."""
        server = self._choose_server(think)
        if think.chat or not server.dialect.ids:
            return None
        return len(await self._prompts.encode_ids(server, think))

    def _choose_server(self, think: ModelCall) -> ServerInfo:
        """Return the server with the model that the step asks for. Raises `EngineError`."""
        server = self.server
        if think.model is None or think.model == server.model:
            return server
        if server.models and think.model not in server.models:
            raise EngineError(describe_unknown_model(server.connection, think.model, server.models))
        return replace(server, model=think.model)

    async def _require_arithmetic(self) -> None:
        """Raise `EngineError` unless the server has arithmetic sampling: other servers ignore the code silently."""
        async with self._arithmetic_lock:
            if self._has_arithmetic is None:
                self._has_arithmetic = await has_arithmetic_sampling(self.server)
        if not self._has_arithmetic:
            raise EngineError(
                f"{self.server.connection.base_url} does not sample by arithmetic: start it with `vllm serve … "
                f"--logits-processors {PROCESSOR}`, or leave the option `arithmetic` off"
            )

    # --- one request ---

    async def _attempt(self, live: LiveJob, server: ServerInfo, chat: bool, tools: Mapping[str, Any]) -> Result | None:
        """Send one request and read its response; `None` to ask again, with room for thoughts."""
        room = self._thinking.thinking_room(server.model, live.think, chat)
        opened = await self._open_response(live, server, chat, room)
        if isinstance(opened, Result):
            return opened
        prompt, resumed_tokens, response = opened
        # A resumed chat goes as ids to completions: those of its rendered template are part of them.
        chat = chat and not isinstance(live.state, Resuming)
        spec = RequestSpec(
            dialect=replace(server.dialect, endpoint="chat/completions") if chat else server.dialect,
            model=server.model,
            think=live.think,
            prompt=prompt,
            chat=chat,
            resumed_tokens=resumed_tokens,
            priority=live.job.priority,
            thinking_room=room,
        )
        request = await self._build_request(live, server, spec, tools)
        await self._wait_for_pause(live)
        seconds = await self._transmit(live, server, request, response)
        base_url = server.connection.base_url
        if response.overran and self._keeps_limits:
            self._keeps_limits = False
            log.warning(
                "%s does not keep max_tokens: its answers are cut here, and streamed to be cut in time", base_url
            )
        if response.finish is None:
            raise _build_cut_error(response, base_url, seconds)
        self.throughput.add_response(response.generated, seconds)
        if self._thinking.learn(server.model, live.think, response, room):
            return None
        if response.thoughts.is_cut_in_thoughts(response.text, response.finish):
            raise CutInThoughts(room)
        return _note_rerendering(live.think, await self._prompts.close_response(server, live.think, response))

    async def _open_response(
        self, live: LiveJob, server: ServerInfo, chat: bool, room: int
    ) -> tuple[str | list[int], int, ResponseParser] | Result:
        """Return (prompt to send, how many of its tokens were generated before, parser); or the result, if the tokens
        of an earlier attempt complete it already."""
        think, generated, response = live.think, live.job.generated, live.response
        if isinstance(live.state, Resuming) and response is not None:
            return await self._resume_response(server, think, response)
        # A form's grammar starts at the beginning of the text: the server cannot place it behind old tokens.
        by_ids = server.dialect.ids and not chat and think.sampling.structured is None
        response = live.response = ResponseParser(
            replace(server.dialect, endpoint="chat/completions") if chat else server.dialect,
            think,
            reports_ids=by_ids and not generated,
            secrets=server.connection.secrets,
            thinking_room=room,
            opens_thoughts=self._thinking.opens_thoughts(server.model, think, chat),
            has_processed_logprobs=self._options.processed_logprobs,
        )
        if generated and by_ids:
            prompt = await self._prompts.encode_ids(server, think)
            text = await self._prompts.decode_output(server, think, prompt, generated)
            if text is not None:
                end = await self._prompts.find_end(server, think, prompt, generated, text)
                if end is not None:
                    live.response = None
                    return end
                # The lost attempt was streamed as the server sends: without a tail that may begin a stop text.
                held = 0 if think.sampling.keep_stop else max(map(len, think.sampling.stop), default=1) - 1
                response.take_over(prompt, generated, text, max(0, len(text) - held))
                return [*prompt, *generated], len(generated), response
        return await self._prompts.encode_prompt(server, think, chat), 0, response

    async def _resume_response(
        self, server: ServerInfo, think: ModelCall, response: ResponseParser
    ) -> tuple[list[int], int, ResponseParser]:
        """Prepare a response that broke off for another stream. Raises `ServerError`."""
        trace = response.token_ids
        if not response.usage.is_fresh:
            text = await self._prompts.decode_output(server, think, trace.prompt_ids, response.resumable_ids)
            if text is None:
                raise ServerError(f"{server.connection.base_url} broke an answer off: try again", retryable=True)
            response.resume(text)
        return [*trace.prompt_ids, *trace.ids], len(trace.ids), response

    async def _build_request(
        self, live: LiveJob, server: ServerInfo, spec: RequestSpec, tools: Mapping[str, Any]
    ) -> OutgoingRequest:
        """Return the request, once it is known which form the server takes."""
        think, dialect, connection = live.think, spec.dialect, server.connection
        probes: list[SentRequest] = []
        try:
            form = await self._forms.build_fields(connection, server.dialect, server.model, think, spec.chat, probes)
        finally:  # the first request for a form pays for the probe
            for probe in probes:
                live.spent += probe.measure(asyncio.get_running_loop().time(), self.throughput)
        if (structured := think.sampling.structured) is not None and not form:
            reason = f"{connection.base_url} does not support this kind"
            live.form_note = f"not held to the form {structured.kind!r}: {reason}"
        thinking = self._thinking.build_fields(think, dialect, spec.chat, spec.thinking_room)
        spec = replace(spec, extra_fields={**form, **tools, **thinking})
        is_long = len(think.messages) >= OFFLOAD_MESSAGES
        fields = await asyncio.to_thread(build_body, spec) if is_long else build_body(spec)
        if dialect.ids and think.sampling.stop:
            own_ids = fields.get("stop_token_ids", ())
            fields["stop_token_ids"] = [*own_ids, *await self._prompts.find_stop_tokens(server, think)]
        headers: dict[str, str] = {}
        if self._stack != "none":
            hints = build_hints(self._stack, live.job, self._options.data_parallel, has_priority=dialect.extras)
            headers = hints.headers
            if dialect.extras or self._stack == "dynamo":
                # What the step itself sets wins over hints.
                fields = merge_fields(hints.fields, fields)
        if live.job.trace:
            headers["traceparent"] = live.job.trace
        limit = think.sampling.max_tokens + spec.thinking_room
        is_followed = (
            think.stream or live.job.report or think.sampling.window or limit > self._options.stream_above_tokens
        )
        if not is_followed and self._keeps_limits:
            # An event per token costs the server and us more than a small model's token itself. A server that ignores
            # max_tokens is streamed all the same: nothing else can stop it in time.
            fields["stream"] = False
            fields.pop("stream_options", None)
        return OutgoingRequest(dialect.endpoint, fields, headers, max(0, limit - spec.resumed_tokens))

    async def _wait_for_pause(self, live: LiveJob) -> None:
        """Wait until the server takes requests again. Raises `ServerError` if the step has less time."""
        while (pause := self._limiter.pause_left_s) > 0:
            left = live.seconds_left()
            if left is not None and left < pause:
                base_url = self.server.connection.base_url
                raise ServerError(f"{base_url} asked to wait for {pause:.0f} s, and the step has less")
            await asyncio.sleep(pause + random.uniform(0.0, self._options.backoff / 2))

    async def _transmit(
        self, live: LiveJob, server: ServerInfo, request: OutgoingRequest, response: ResponseParser
    ) -> float:
        """Send a request within the concurrency limit and read its response. Return the seconds it took."""
        loop = asyncio.get_running_loop()
        round_ = await self._limiter.acquire()
        outcome: Outcome = "neither"
        sent_at = loop.time()
        try:
            self._counts["requests"] += 1
            live.request = SentRequest(request.fields, response, request.max_tokens, sent_at)
            await self._read_response(live, server, request, response)
            outcome = "served"
        except ServerError as error:
            error = classify_error(error, loop.time() - sent_at)
            if error.status in OVERLOADED:
                outcome = "overloaded"
                self._counts["overloaded"] += 1
                if error.retry_after and error.retry_after <= MAX_SERVER_WAIT_S:
                    self._limiter.pause(error.retry_after)
            if error.status is None and (error.retryable or error.costly):
                self._suspect.set()  # the connection broke: the server may be down
            live.charge(self.throughput, is_free=response.usage.is_fresh and (error.refused or error.is_free))
            raise error from None
        finally:
            live.charge(self.throughput)
            self._limiter.release(round_, outcome)
        return loop.time() - sent_at

    # --- one response ---

    async def _read_response(
        self, live: LiveJob, server: ServerInfo, request: OutgoingRequest, response: ResponseParser
    ) -> None:
        """Read a response within the time limits. Raises `ServerError`."""
        options, loop, base_url = self._options, asyncio.get_running_loop(), server.connection.base_url
        deadline = loop.time() + options.total_timeout
        last_token_at: float | None = None
        # Of a whole response nothing is seen before its end, however healthy the server is.
        watches = not self._has_warned and request.is_streamed
        slow = loop.call_later(SLOW_RESPONSE_S, self._warn_slow, base_url) if watches else None
        stream = server.connection.stream_batches(request.endpoint, request.fields, request.headers)
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + options.first_timeout)) as clock:
                async with contextlib.aclosing(stream) as batches:
                    async for batch in batches:
                        now = loop.time()
                        if live.request is not None:
                            live.request.last_read_at = now
                        has_tokens = self._feed_batch(live, response, batch)
                        # The timer is moved at most eight times in a silence: moving it for each token would cost more
                        # than the token.
                        if has_tokens and (last_token_at is None or now - last_token_at > options.timeout / 8):
                            last_token_at = now
                            clock.reschedule(min(deadline, now + options.timeout))
                            if slow is not None:
                                slow.cancel()
                        if response.found_stop:
                            await _read_usage(batches, response)
                        if response.is_done:
                            break
        except TimeoutError:
            raise self._build_timeout_error(base_url, loop.time() >= deadline, last_token_at is not None) from None
        finally:
            if slow is not None:
                slow.cancel()

    def _build_timeout_error(self, base_url: str, is_total: bool, has_begun: bool) -> ServerError:
        options = self._options
        if is_total:
            return ServerError(
                f"an answer of {base_url} took more than {options.total_timeout:g} s: raise `total_timeout`, or ask "
                "for fewer tokens"
            )
        if not has_begun:
            # It may have been generating all the time: costly, so that the worker does not ask for the same again.
            message = f"{base_url} did not answer for {options.first_timeout:g} s: it hangs, or needs a longer"
            return ServerError(f"{message} `first_timeout`", costly=True)
        message = f"{base_url} sent no token for {options.timeout:g} s within an answer: it hangs, or needs a longer"
        return ServerError(f"{message} `timeout`", retryable=True)

    def _warn_slow(self, base_url: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s has not begun to answer for %g s; it times out after %g s (first_timeout)",
                base_url, SLOW_RESPONSE_S, self._options.first_timeout,
            )  # fmt: skip

    def _feed_batch(self, live: LiveJob, response: ResponseParser, batch: Sequence[Any]) -> bool:
        """Parse chunks that arrived together, and report their text as one; return whether there was any."""
        news: list[Progress] = []
        has_progress = False
        try:
            for chunk in batch:
                # Behind a stop text the usage may still come, until the server continues to generate instead.
                usage = response.usage
                if response.is_done and (not response.found_stop or usage.is_final or usage.extra_pieces):
                    break
                if (progress := response.feed(chunk)) is None:
                    continue
                has_progress = True
                if live.think.stream:
                    news.append(progress)
                else:
                    _report_figures(live, response, progress)
        finally:  # what came before an invalid chunk is valid
            if news:
                live.report(news[0] if len(news) == 1 else together(news))
        return has_progress


def _report_figures(live: LiveJob, response: ResponseParser, progress: Progress) -> None:
    """Report confidence and token counts of a job without a reader of its text, at intervals."""
    if not (live.think.sampling.window or live.job.report):
        return
    live.unreported.append(progress)
    tokens = sum(piece.tokens for piece in live.unreported) if live.job.report else 0
    if response.logprobs.is_due() or tokens >= REPORT_TOKENS:
        live.report(replace(together(live.unreported), text="", reasoning=""))
        live.unreported.clear()


async def _read_usage(batches: AsyncIterator[list[Any]], response: ResponseParser) -> None:
    """Wait briefly for the usage, which comes last: at once if the response ends here too. A server that keeps
    generating is disconnected."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration, ServerError):
        async with asyncio.timeout(USAGE_TIMEOUT_S):
            while not response.usage.is_final and not response.usage.extra_pieces:
                for chunk in await anext(batches):
                    response.feed(chunk)


def _build_cut_error(response: ResponseParser, base_url: str, seconds: float) -> ServerError:
    """Return the error of a stream that ended without a `finish_reason`."""
    if response.usage.chunk_count and response.usage.is_fresh:
        return ServerError(f"the answer of {base_url} held no text and no end (`choices`): is it OpenAI-compatible?")
    message = f"{base_url} broke an answer off after {response.usage.tokens} tokens: try again"
    return ServerError(message, retryable=True, costly=seconds >= FREE_FAILURE_S)


def _note_rerendering(think: ModelCall, result: Result) -> Result:
    """Note in a result whether the server's template rendered the earlier conversation with other tokens, as far as it
    returns ids: its prefix cache is then missed from there on."""
    known = tuple(id_ for part in think.context if isinstance(part, Tokens) for id_ in part.ids)
    if not known or not result.prompt_ids or result.prompt_ids[: len(known)] == known:
        return result
    pairs = zip(known, result.prompt_ids, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), 0)
    reason = f"the server wrote the conversation in another way from token {same} of {len(known)} on"
    return result.model_copy(update={"anew": reason})
