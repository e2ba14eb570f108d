"""A model worker over a trainer's own server client: token ids in, token ids out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plait.core.errors import ContextOverflow, EngineError, PlaitError, Rejected
from plait.core.events import Job
from plait.core.interfaces import Progress, Worker
from plait.core.ops import Kind, ModelCall
from plait.core.result import Failure, Result, TokenDraws, Usage, as_failure
from plait.core.values import first_stop
from plait.workers._shared.prompt import Prompter, PromptIds, rendered

__all__ = ["GeneratedTokens", "TokenClient"]


class GeneratedTokens(NamedTuple):
    """The output of one call of the server."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    versions: tuple[int, int] | None = None
    """The oldest and the newest version of the weights that drew the tokens; `None` if unknown."""


Generate = Callable[[str, list[int], dict[str, Any]], Awaitable[GeneratedTokens]]


class TokenClient(Worker):
    """Calls `generate(step id, prompt ids, sampling parameters)` for each model call of a plan.

    The trainer's `sampling` decides how tokens are drawn, since its ratios assume it; a call adds its token limit, its
    stop texts and, with `seeded`, its seed. Prompts are rendered with the tokenizer's chat template, and a continued
    conversation keeps its token ids. The end token of a turn is recorded, so that training includes it.
    """

    serves: tuple[Kind, ...] = ("think",)

    name, slots = "trainer", 1024

    def __init__(
        self, generate: Generate, tokenizer: Any, sampling: Mapping[str, Any], *, prompt: int, response: int,
        seeded: bool = False,
    ) -> None:  # fmt: skip
        """`prompt`, `response`: token limits of a sequence's first prompt and of what follows it."""
        self.error: Exception | None = None
        """The last error of the server."""
        self.has_versions = True
        """Whether every output had its versions of the weights."""
        self._generate, self._sampling, self._seeded = generate, dict(sampling), seeded
        self._response, self._most = response, prompt + response
        self._openings: list[list[int]] = []
        """Prompts that continued no other."""
        self._prompter = Prompter(tokenizer)
        self._ends = frozenset(tokenizer.all_special_ids)
        self._live: dict[int, asyncio.Task[GeneratedTokens]] = {}

    async def start(self) -> None:
        """Nothing to load: the trainer starts and stops its servers."""

    async def close(self) -> None:
        """Nothing to free."""

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Make one call of the server."""
        assert isinstance(job.op, ModelCall)
        think = rendered(job.op, self._prompter.template)
        try:
            prompt = self._prompter.prompt(think)
            params = self._params(think, prompt.ids)
        except PlaitError as error:
            yield as_failure(error)
            return
        task = self._live[job.attempt] = asyncio.ensure_future(self._generate(job.step, list(prompt.ids), dict(params)))
        try:
            await asyncio.wait([task])
        finally:
            del self._live[job.attempt]
            task.cancel()  # nothing to do unless the reader left
        if task.cancelled():
            usage = Usage(prompt=len(prompt.ids))
            yield Result(value="", prompt_ids=tuple(prompt.ids), usage=usage, finish="cancelled")
        elif isinstance(error := task.exception(), Exception):
            self.error = error
            yield as_failure(EngineError(f"the trainer's server failed: {type(error).__name__}: {error}"))
        else:
            yield self._result(think, prompt, task.result(), params)

    async def cancel(self, attempt: int) -> None:
        """Cancel the call of the server."""
        if task := self._live.get(attempt):
            task.cancel()

    async def health(self) -> AsyncIterator[bool]:
        """Always ready."""
        yield True
        await asyncio.Event().wait()

    def _params(self, think: ModelCall, prompt: list[int]) -> dict[str, Any]:
        """Return the sampling parameters of a call. Raises `PlaitError` for a call that the server cannot take."""
        sampling, length = think.sampling, len(prompt)
        if sampling.labels or (sampling.structured is not None and sampling.structured.required):
            raise Rejected("a trainer's server enforces no structured output: use a planner without it")
        begin = next((len(first) for first in self._openings if prompt[: len(first)] == first), None)
        if begin is None:
            self._openings.append(prompt)
        room = min(self._most if begin is None else begin + self._response, self._most) - length
        if begin is not None and room < 1:  # an end, and not an overflow, which a planner would compact
            raise EngineError(f"the sequence has reached the trainer's limit of {self._response} response tokens")
        if room < 1:
            raise ContextOverflow(f"the prompt has {length} tokens, and the trainer's context holds {self._most}")
        params, stops = {**self._sampling, "max_tokens": min(sampling.max_tokens, room)}, self._prompter.stops
        texts, ids = stops(sampling.stop).texts, (*stops(sampling.stop).ids, *sampling.stop_ids)
        for name, added in (("stop", texts), ("stop_token_ids", ids)):
            if added:
                params[name] = [*(params.get(name) or ()), *added]
        return {**params, "seed": sampling.seed} if self._seeded else params

    def _result(self, think: ModelCall, prompt: PromptIds, drawn: GeneratedTokens, params: Mapping[str, Any]) -> Result:
        ids, sampling, end = list(drawn.ids), think.sampling, None
        logprobs = [min(0.0, logprob) for logprob in drawn.logprobs or ()]
        usage, finish = Usage(prompt=len(prompt.ids), completion=len(ids)), "stop"
        if ids and ids[-1] in {*self._ends, *params.get("stop_token_ids", ())} and not sampling.keep_stop:
            end = ids.pop(), logprobs[-1] if logprobs else 0.0
        elif len(ids) >= params["max_tokens"]:
            finish = "length"
        text = self._prompter.after(prompt.ids, ids)
        if (stop := first_stop(text, sampling.stop)) is not None:
            text, finish, end = text[: stop[sampling.keep_stop]], "stop", None
            ids = self._prompter.within(ids, text)
        self.has_versions &= drawn.versions is not None
        # The place of a change is unknown; trainers read the oldest and the newest version.
        oldest, newest = drawn.versions or (0, 0)
        policies = ((0, oldest), *([(max(0, len(ids) - 1), newest)] if newest > oldest else []))
        record = TokenDraws(
            logprobs=tuple(logprobs[: len(ids)]), end=end, policies=policies, processed=True,
            temperature=self._sampling.get("temperature", 1.0), top_p=self._sampling.get("top_p", 1.0),
        )  # fmt: skip
        return Result(
            value=text, prompt_ids=tuple(prompt.ids), token_ids=tuple(ids), usage=usage, finish=finish, drawn=record,
            # Cut by the trainer's limit, which is no reason to compact the conversation.
            partial=finish == "length" and len(ids) < sampling.max_tokens, anew=prompt.anew,
        )  # fmt: skip
