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
from plait.workers._shared.prompt import Prompter, rendered

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

    def __init__(
        self,
        generate: Generate,
        tokenizer: Any,
        sampling: Mapping[str, Any],
        *,
        context: int,
        seeded: bool = False,
        name: str = "trainer",
        slots: int = 1024,
    ) -> None:
        """`context`: token limit of prompt and output together."""
        self.name, self.slots = name, slots
        self.error: Exception | None = None
        """The last error of the server."""
        self.has_versions = True
        """Whether every output had its versions of the weights."""
        self._generate, self._sampling, self._context, self._seeded = generate, dict(sampling), context, seeded
        self._prompter = Prompter(tokenizer)
        self._ends = frozenset(tokenizer.all_special_ids)
        self._live: dict[int, asyncio.Task[GeneratedTokens]] = {}
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Nothing to load: the trainer has started its servers."""
        self._closed.clear()

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Make one call of the server."""
        assert isinstance(job.op, ModelCall)
        think = rendered(job.op, self._prompter.template)
        try:
            prompt = self._prompter.prompt(think)
            params = self._params(think, len(prompt.ids))
        except PlaitError as error:
            yield as_failure(error)
            return
        task = self._live[job.attempt] = asyncio.ensure_future(
            self._generate(job.step, list(prompt.ids), dict(params))
        )
        try:
            await asyncio.wait([task])
        finally:
            del self._live[job.attempt]
            task.cancel()  # nothing to do unless the reader left
        if task.cancelled():
            yield Result(value="", prompt_ids=tuple(prompt.ids), usage=Usage(prompt=len(prompt.ids)), finish="cancelled")
        elif isinstance(error := task.exception(), Exception):
            self.error = error
            yield as_failure(EngineError(f"the trainer's server failed: {type(error).__name__}: {error}"))
        else:
            result = self._result(think, prompt.ids, task.result(), params)
            yield result.model_copy(update={"anew": prompt.anew})

    def _params(self, think: ModelCall, length: int) -> dict[str, Any]:
        """Return the sampling parameters of a call. Raises `PlaitError` for a call that the server cannot take."""
        sampling, room = think.sampling, self._context - length
        if sampling.structured is not None and sampling.structured.required or sampling.labels:
            raise Rejected("a trainer's server enforces no structured output: use a planner without it")
        if room < 1:
            raise ContextOverflow(f"the prompt has {length} tokens, and the trainer's context holds {self._context}")
        stops = self._prompter.stops(sampling.stop)
        params = {**self._sampling, "max_tokens": min(sampling.max_tokens, room)}
        if stops.texts:
            params["stop"] = [*(params.get("stop") or ()), *stops.texts]
        if ids := (*stops.ids, *sampling.stop_ids):
            params["stop_token_ids"] = [*(params.get("stop_token_ids") or ()), *ids]
        if self._seeded and sampling.seed is not None:
            params["seed"] = sampling.seed
        return params

    def _result(
        self, think: ModelCall, prompt: Sequence[int], drawn: GeneratedTokens, params: Mapping[str, Any]
    ) -> Result:
        ids, logprobs, sampling = list(drawn.ids), drawn.logprobs, think.sampling
        usage = Usage(prompt=len(prompt), completion=len(ids))
        finish = "length" if len(ids) >= params["max_tokens"] else "stop"
        end: tuple[int, float] | None = None
        if ids and ids[-1] in {*self._ends, *params.get("stop_token_ids", ())} and not sampling.keep_stop:
            end, finish = (ids.pop(), min(0.0, logprobs[-1]) if logprobs else 0.0), "stop"
        text = self._prompter.after(prompt, ids)
        if (stop := first_stop(text, sampling.stop)) is not None:
            text = text[: stop[sampling.keep_stop]]
            ids, finish, end = self._prompter.within(ids, text), "stop", None
        versions = drawn.versions
        self.has_versions &= versions is not None
        policies = () if versions is None else ((0, versions[0]),)
        if versions is not None and versions[1] != versions[0] and ids:
            # The place of the change is unknown; trainers read the oldest and the newest version.
            policies = (*policies[: len(ids) > 1], (len(ids) - 1, versions[1]))
        given = self._sampling
        record = TokenDraws(
            logprobs=tuple(min(0.0, each) for each in logprobs[: len(ids)]) if logprobs else (),
            end=end,
            policies=policies,
            processed=True,
            temperature=given.get("temperature", 1.0),
            top_p=given.get("top_p", 1.0),
        )
        return Result(
            value=text, prompt_ids=tuple(prompt), token_ids=tuple(ids), usage=usage, finish=finish, drawn=record
        )

    async def cancel(self, attempt: int) -> None:
        """Cancel the call of the server."""
        if task := self._live.get(attempt):
            task.cancel()

    async def health(self) -> AsyncIterator[bool]:
        """Ready until closed."""
        yield True
        await self._closed.wait()

    async def close(self) -> None:
        """Cancel all calls."""
        self._closed.set()
        for task in self._live.values():
            task.cancel()
