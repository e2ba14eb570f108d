"""One job at an OpenAI-compatible server: sends its requests, some of them again, and reports its progress.

The worker sends a request again only if the first cost the server nothing: it was turned away, or the connection broke
at once. An answer that broke off is continued from its token ids, once. Every other error ends the attempt, with the
tokens that it used, and the step's own retries (`Retries.think`) decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from plait.core.errors import CutInThoughts, EngineError
from plait.core.events import Job
from plait.core.interfaces import Progress, Tell
from plait.core.ops import Think, Tokens
from plait.core.result import Failure, Result, Usage

from .._shared.codes import PROCESSOR
from .._shared.streams import together
from .bill import SentRequest
from .hints import Kind, kind_of, request_hints
from .limiter import AnswerSpeed, Gate, Verdict
from .options import HttpOptions
from .probe import ServerFacts, by_arithmetic, unknown
from .prompts import Prompts
from .reading import AnswerReading
from .thoughts import ServerThoughts
from .tools import Offers
from .wire import ServerError, body, merged

log = logging.getLogger("plait.http")

REPORTS = 16
"""Tokens between two reports of a job that a budget counts and nobody follows."""
MOST_SAID = 1e9
"""Seconds that are told as they are; a server may ask for any number."""
LONGEST_WAIT = 600.0
"""Seconds. A server that asks to wait for longer fails the step."""
MANY = 100
"""Messages from which on a request is made on a thread, so that others go on."""
QUICK = 1.0
"""Seconds. A request that failed within this time cost the server next to nothing."""
MOMENT = 0.25
"""Seconds that the usage of an answer may take that we have cut at a stop text."""
SLOW = 30.0
"""Seconds without a token after which a person is told that the server may hang."""


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job on its way."""

    job: Job
    think: Think
    tell: Tell
    """Takes its news and its end: call `say`."""
    over: bool = False
    """The end is told."""
    reading: AnswerReading | None = None
    task: asyncio.Task[None] | None = None
    why: Failure | None = None
    """Set when the worker itself gives the job up."""
    began: float = 0.0
    """When the job came, on the loop's clock."""
    unformed: str = ""
    """Why the text is not held to its form, if it is not."""
    tries: int = 0
    """Requests that were sent again."""
    resumed: bool = False
    """Its answer broke off, and a further request goes on where it did. That is done once."""
    stuck: bool = False
    """Its answer broke off where no other request can go on."""
    request: SentRequest | None = None
    """The one that is under way."""
    untold: list[Progress] = field(default_factory=list[Progress])
    """News of a job that does not stream, until its group of confidence is due."""
    spent: Usage = field(default_factory=Usage)
    """Of its requests that are over, whether they brought an answer or not."""

    def say(self, item: Progress | Result | Failure) -> None:
        """Tell news, or the end; after that nothing is told."""
        if self.over or (isinstance(item, Progress) and not (item.text or item.tokens)):
            return
        self.over = not isinstance(item, Progress)
        self.tell(item)

    def close(self, speed: AnswerSpeed, free: bool = False) -> None:
        """Charge the request that was under way, unless the server turned it away."""
        if self.request is not None and not free:
            self.spent += self.request.usage(asyncio.get_running_loop().time(), speed)
        self.request = None


class Sender:
    """Sends the jobs of one server as it was found."""

    def __init__(
        self, options: HttpOptions, server: ServerFacts, gate: Gate, counts: dict[str, int], suspect: asyncio.Event
    ) -> None:
        """`suspect` is set when a connection broke, so that the worker checks whether the server is still there."""
        self.server = server
        self.pace = AnswerSpeed()
        self._suspect = suspect
        self._options, self._gate, self._counts = options, gate, counts
        self._prompts, self._offers, self._thoughts = Prompts(), Offers(), ServerThoughts(server.model, server.opens)
        self._template = True
        self._arithmetic: bool | None = None
        """Whether the server samples by codes; `None` until a step has asked for it."""
        self._asking = asyncio.Lock()
        self._limits = server.dialect.limits
        self._warned = False
        self._kind: Kind = kind_of(options.hints, server.owners)

    async def send(self, live: LiveJob) -> Result:
        """Do one job. Raises `ServerError` or `EngineError`."""
        server = self._serving(live.think)
        live.began = asyncio.get_running_loop().time()
        if live.think.sampling.arithmetic is not None and live.think.sampling.draws:
            await self._by_arithmetic()
        chat = server.dialect.endpoint == "chat/completions"
        while True:
            try:
                result = await self._offered(live, server, chat or (live.think.chat and self._template))
                return result.model_copy(update={"usage": live.spent, "why": live.unformed})
            except ServerError as trouble:
                refused = trouble.status in (400, 422, 500) and "chat template" in trouble.message
                if refused and not chat and live.think.chat and self._template:
                    # A model without a chat template: the prompt is plain text, as for an engine in this process.
                    self._template = False
                    continue
                if self._cannot_form(live, trouble):
                    continue
                wait = self._wait(live, trouble)
                if wait is None:
                    raise
                log.info("%s: %s", self._options.name, trouble.message)
            live.tries += 1
            self._counts["retries"] += 1
            await asyncio.sleep(wait)

    async def _by_arithmetic(self) -> None:
        """Raise `EngineError` unless the server samples by codes: other servers leave the code unread."""
        async with self._asking:
            if self._arithmetic is None:
                self._arithmetic = await by_arithmetic(self.server)
        if not self._arithmetic:
            raise EngineError(
                f"{self.server.link.base_url} does not sample by arithmetic: start it with `vllm serve … "
                f"--logits-processors {PROCESSOR}`, or leave the option `arithmetic` off"
            )

    def _cannot_form(self, live: LiveJob, trouble: ServerError) -> bool:
        """Whether to ask again without the form, which the step can do without and the server may not be able to keep
        its model to. Says so in the error where the form is required."""
        form, reading = live.think.sampling.structured, live.reading
        if form is None or trouble.status not in (400, 422, 500) or (reading is not None and not reading.fresh):
            return False
        if form.required:
            trouble.message += (
                f" (the step asks for the form {form.kind!r}: check what specifies it, and that the model's tokenizer "
                "has tokens to write it with)"
            )
            return False
        log.warning("%s: without the form %r, since %s", self._options.name, form.kind, trouble.message)
        live.unformed = f"not held to the form {form.kind!r}: {trouble.message}"
        sampling = live.think.sampling.model_copy(update={"structured": None})
        live.think = live.think.model_copy(update={"sampling": sampling})
        return True

    def partial(self, live: LiveJob) -> Result:
        """Return the result of a cancelled job: what the server had sent before."""
        result = live.reading.result("cancelled") if live.reading else Result(value="", finish="cancelled")
        return result.model_copy(update={"usage": live.spent})

    def count(self, live: LiveJob) -> None:
        """Add a job that has ended to the worker's counts."""
        usage = live.spent
        self._counts["generated"] += usage.completion
        self._counts["prompt"] += usage.prompt
        self._counts["cached"] += usage.cached

    async def prompt_tokens(self, think: Think) -> int | None:
        """Return the tokens of a prompt, where the server says what they are."""
        server = self._serving(think)
        if think.chat or not server.dialect.ids:
            return None
        return len(await self._prompts.prompt_ids(server, think))

    def _wait(self, live: LiveJob, trouble: ServerError) -> float | None:
        """Return the seconds until a request may be sent again; `None` if it may not. An error that outlives the
        worker's own tries is no longer retryable."""
        if not trouble.retryable:
            return None
        reading, options = live.reading, self._options
        if reading is not None and not reading.fresh:
            sampling = live.think.sampling
            fixed = bool(live.think.tools) or sampling.structured is not None
            if live.resumed or live.stuck or not reading.past or fixed or live.tries >= options.retries:
                return None
            live.resumed = True
        elif trouble.costly:
            return None
        elif live.tries >= (options.retries if trouble.refused else min(1, options.retries)):
            trouble.retryable = not trouble.refused
            return None
        asked = trouble.retry_after or 0.0
        left = self._left(live)
        if asked > LONGEST_WAIT or (left is not None and asked > left):
            left = min(asked if left is None else left, MOST_SAID)
            trouble.message += f" (it asks to wait for {asked:.4g} s, and the step has {min(left, asked):.0f} s)"
            trouble.retryable = False
            return None
        # The jitter comes on top: all who were told the same would else come back at once.
        wait = max(asked, options.backoff * 2.0**live.tries) + random.uniform(0.0, options.backoff / 2)
        # Without time for another try this failure is reported now: at the time limit nobody would ask for it.
        return wait if left is None or wait < left else None

    @staticmethod
    def _left(live: LiveJob) -> float | None:
        """Return the seconds that the job's budget leaves, if it has a limit."""
        seconds = live.job.seconds
        return None if seconds is None else seconds - (asyncio.get_running_loop().time() - live.began)

    def _serving(self, think: Think) -> ServerFacts:
        """Return the server with the model that the step asks for. Raises `EngineError`."""
        server = self.server
        if think.model is None or think.model == server.model:
            return server
        if server.models and think.model not in server.models:
            raise EngineError(unknown(server.link, think.model, server.models))
        return replace(server, model=think.model)

    async def _offered(self, live: LiveJob, server: ServerFacts, chat: bool) -> Result:
        """Send one request, again with less when the server refuses the functions that it offers."""
        while True:
            offer = self._offers.fields(server.model, live.think, chat)
            try:
                result = await self._once(live, server, chat, offer)
                if result is None:
                    continue
                if live.think.tools and live.think.tool_choice != "auto" and offer.get("tool_choice", "auto") == "auto":
                    live.unformed = f"not held to a call: {server.link.base_url} does not take tool_choice"
                return result
            except ServerError as trouble:
                begun = live.reading is not None and not live.reading.fresh
                if begun or not self._offers.refused(server.model, offer, trouble):
                    raise

    async def _once(
        self, live: LiveJob, server: ServerFacts, chat: bool, offer: Mapping[str, Any] = MappingProxyType({})
    ) -> Result | None:
        """Send one request and read its answer; `None` if it is to be asked for again, with room for thoughts."""
        room = self._thoughts.room(server.model, live.think, chat)
        begun = await self._begin(live, server, chat, room)
        if isinstance(begun, Result):
            return begun
        prompt, past, reading = begun
        think, base = live.think, server.link.base_url
        chat = chat and not live.resumed  # by the ids that the server said, its template's words among them
        dialect = replace(server.dialect, endpoint="chat/completions") if chat else server.dialect
        asked: list[SentRequest] = []
        try:
            form = await self._prompts.form(server, think, chat, asked)
        finally:  # what it cost to find out is this job's
            for request in asked:
                live.spent += request.usage(asyncio.get_running_loop().time(), self.pace)
        if think.sampling.structured is not None and not form:
            live.unformed = f"not held to the form {think.sampling.structured.kind!r}: {base} takes none of that kind"
        form = {**form, **offer, **self._thoughts.fields(think, dialect, chat, room)}
        make = partial(
            body,
            dialect,
            server.model,
            think,
            prompt,
            chat,
            past=past,
            priority=live.job.priority,
            form=form,
            room=room,
        )
        fields = await asyncio.to_thread(make) if len(think.messages) >= MANY else make()
        if dialect.ids and think.sampling.stop:
            own = fields.get("stop_token_ids", ())
            fields["stop_token_ids"] = [*own, *await self._prompts.singles(server, think)]
        followed = (
            think.stream
            or live.job.report
            or think.sampling.window
            or think.sampling.max_tokens + room > self._options.whole
        )
        extra = request_hints(self._kind, live.job, self._options.data_parallel, priority=dialect.extras)
        if dialect.extras or self._kind == "dynamo":
            fields = merged(extra.fields, fields)
        if live.job.trace:
            extra.headers["traceparent"] = live.job.trace
        whole = not followed and self._limits
        if whole:
            # A line for every token costs the server and us more than a small model's token itself.
            fields["stream"] = False
            fields.pop("stream_options", None)
        await self._turn(live)
        round_ = await self._gate.enter()
        verdict: Verdict = "neither"
        sent = asyncio.get_running_loop().time()
        try:
            self._counts["requests"] += 1
            live.request = SentRequest(fields, reading, max(0, think.sampling.max_tokens + room - past), sent)
            await self._read(live, reading, server, dialect, fields, extra.headers)
            verdict = "served"
        except ServerError as trouble:
            self._judge(trouble, asyncio.get_running_loop().time() - sent)
            if trouble.status in (429, 503):
                verdict = "overloaded"
                self._counts["overloaded"] += 1
            live.close(self.pace, free=reading.fresh and (trouble.refused or trouble.turned_away))
            raise
        finally:
            live.close(self.pace)
            self._gate.leave(round_, verdict)
        if reading.overran and self._limits:
            self._limits = False
            log.warning("%s does not keep max_tokens: its answers are cut here, and streamed to be cut in time", base)
        if reading.finish is None:
            raise self._unfinished(reading, base, asyncio.get_running_loop().time() - sent)
        self.pace.add(reading.generated, asyncio.get_running_loop().time() - sent)
        if self._thoughts.learn(server.model, think, reading, room):
            return None
        if reading.cut_in_thoughts:
            raise CutInThoughts(room)
        return _continued(think, await self._prompts.stripped(think, server, reading))

    async def _read(
        self,
        live: LiveJob,
        reading: AnswerReading,
        server: ServerFacts,
        dialect: Any,
        fields: dict[str, Any],
        headers: Mapping[str, str],
    ) -> None:
        """Read an answer, within the limits on time."""
        options, loop, base = self._options, asyncio.get_running_loop(), server.link.base_url
        end = loop.time() + options.total_timeout
        moved = -1.0
        """When the last token came, to within an eighth of the silence that is allowed."""
        # Of an answer in one piece nothing is seen before its end, however healthy the server is.
        watched = not self._warned and fields.get("stream") is not False
        slow = loop.call_later(SLOW, self._say_slow, base) if watched else None
        try:
            async with asyncio.timeout_at(min(end, loop.time() + options.first_timeout)) as clock:
                async with contextlib.aclosing(server.link.batches(dialect.endpoint, fields, headers)) as batches:
                    async for batch in batches:
                        now = loop.time()
                        if live.request is not None:
                            live.request.heard = now
                        if self._feed(live, reading, batch) and (now - moved > options.timeout / 8 or moved < 0):
                            moved = now
                            clock.reschedule(min(end, now + options.timeout))
                            if slow is not None:
                                slow.cancel()
                        if reading.stopped_here:
                            await _read_on(batches, reading)
                        if reading.left:
                            break
        except TimeoutError:
            if loop.time() >= end:
                complaint = f"an answer of {base} took more than {options.total_timeout:g} s: raise `total_timeout`"
                raise ServerError(f"{complaint}, or ask for fewer tokens") from None
            if moved < 0:
                complaint = f"{base} did not answer for {options.first_timeout:g} s"
                raise ServerError(f"{complaint}: it hangs, or needs a longer `first_timeout`", costly=True) from None
            complaint = f"{base} sent no token for {options.timeout:g} s within an answer"
            raise ServerError(f"{complaint}: it hangs, or needs a longer `timeout`", retryable=True) from None
        finally:
            if slow is not None:
                slow.cancel()

    def _say_slow(self, base: str) -> None:
        if not self._warned:
            self._warned = True
            most = self._options.first_timeout
            log.warning(
                "%s has not begun to answer for %g s; it is given up after %g s (first_timeout)", base, SLOW, most
            )

    def _judge(self, trouble: ServerError, seconds: float) -> None:
        """Mark an error as a refusal or not, and say whether it may have cost tokens."""
        trouble.refused = trouble.unreachable or trouble.status in (429, 503)
        trouble.refused = trouble.refused or (trouble.status is not None and seconds < QUICK)
        trouble.costly = trouble.costly or (not trouble.refused and seconds >= QUICK)
        if trouble.status in (429, 503) and trouble.retry_after and trouble.retry_after <= LONGEST_WAIT:
            self._gate.pause(trouble.retry_after)
        if trouble.status is None and (trouble.retryable or trouble.costly):
            self._suspect.set()  # the connection, not an answer: look whether the server is still there

    @staticmethod
    def _unfinished(reading: AnswerReading, base: str, seconds: float) -> ServerError:
        if reading.chunks and reading.fresh:
            return ServerError(f"the answer of {base} held no text and no end (`choices`): is it OpenAI-compatible?")
        complaint = f"{base} broke an answer off after {reading.count} tokens: try again"
        return ServerError(complaint, retryable=True, costly=seconds >= QUICK)

    async def _turn(self, live: LiveJob) -> None:
        """Wait until the server wants to be asked again."""
        while (closed := self._gate.closed_for) > 0:
            left = self._left(live)
            if left is not None and left < closed:
                raise ServerError(
                    f"{self.server.link.base_url} asked to wait for {closed:.0f} s, and the step has less"
                )
            await asyncio.sleep(closed + random.uniform(0.0, self._options.backoff / 2))

    async def _begin(
        self, live: LiveJob, server: ServerFacts, chat: bool, room: int
    ) -> tuple[str | list[int], int, AnswerReading] | Result:
        """Return the prompt to send, how many of its tokens were generated before, and the reader of the answer; or the
        result, if the tokens from before end the answer already."""
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
        tells = by_ids and not generated
        opened = self._thoughts.opened(server.model, think, chat)
        reading = AnswerReading(dialect, think, tells=tells, secrets=server.link.secrets, room=room, opened=opened)
        reading.processed = self._options.processed_logprobs
        live.reading = reading
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

    def _feed(self, live: LiveJob, reading: AnswerReading, batch: Sequence[Any]) -> bool:
        """Read what has arrived together, and tell its text as one; return whether there was any."""
        news: list[Progress] = []
        heard = False
        try:
            for chunk in batch:
                if reading.left and (not reading.stopped_here or reading.billed or reading.went_on):
                    break
                if (progress := reading.feed(chunk)) is None:
                    continue
                heard = True
                if live.think.stream:
                    news.append(progress)
                else:
                    self._tell_now_and_then(live, reading, progress)
        finally:  # what came before a piece that is an error is told
            if news:
                live.say(news[0] if len(news) == 1 else together(news))
        return heard

    @staticmethod
    def _tell_now_and_then(live: LiveJob, reading: AnswerReading, progress: Progress) -> None:
        """Pass on the confidence, or how many tokens there are, of a step whose text nobody follows."""
        if live.think.sampling.window or live.job.report:
            live.untold.append(progress)
            if reading.due() or (live.job.report and sum(piece.tokens for piece in live.untold) >= REPORTS):
                live.say(replace(together(live.untold), text=""))
                live.untold.clear()


async def _read_on(batches: AsyncIterator[list[Any]], reading: AnswerReading) -> None:
    """Read on for a moment to the usage, which comes last: it does at once where the answer ends here. A server that
    says more instead generates on, and is left."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration, ServerError):
        async with asyncio.timeout(MOMENT):
            while not reading.billed and not reading.went_on:
                for chunk in await anext(batches):
                    reading.feed(chunk)


def _continued(think: Think, result: Result) -> Result:
    """Say of a conversation that went on whether the server read what came before token for token, as far as it tells
    its ids."""
    known = tuple(id_ for part in think.context if isinstance(part, Tokens) for id_ in part.ids)
    if not known or not result.prompt_ids or result.prompt_ids[: len(known)] == known:
        return result
    same = next((at for at, (a, b) in enumerate(zip(known, result.prompt_ids, strict=False)) if a != b), 0)
    why = f"the server wrote the conversation in another way from token {same} of {len(known)} on"
    return result.model_copy(update={"anew": why})
