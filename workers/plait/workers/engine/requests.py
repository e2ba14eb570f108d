"""A request to the engine and its state while it runs; how a lost attempt's tokens become its beginning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.core.interfaces import Progress
from plait.core.result import Failure, Finish, Result, Sources, Token, TokenDraws, Usage
from plait.core.sampling import Sampling
from plait.core.values import first_stop, opening

from .._shared.batch_streams import Reporter
from .._shared.confidence import ConfidenceTrace, token_draws
from .._shared.prompt import TAIL_TOKENS, Prompter

EngineOutputs = list[tuple[Reporter, Progress | Result | Failure]]


@dataclass(slots=True)
class PreparedRequest:
    """A request as the engine gets it."""

    key: str
    """Our name for the request; `inner` is the engine's."""
    stream: Reporter
    prompt: list[int]
    sampling: Sampling
    streams: bool
    """Whether each step's text is reported."""
    params: Any = None
    deltas: bool = False
    """Whether the engine reports every step, or only the end."""
    priority: int = 0
    salt: str = ""
    lora: Any = None
    past: tuple[int, ...] = ()
    """What a lost attempt had generated: to the engine the end of the prompt, in the result the beginning of it."""
    earlier: str = ""
    """The text of `past`."""
    joint: str = ""
    """The end of `earlier`, if it may begin a stop text. No text is reported before that is decided."""
    tells: bool = False
    """Whether new text is reported with its token ids."""
    attempt: int = 0
    reports: bool = False
    """Whether a budget counts its tokens, whose number is then reported every few steps."""
    bare: bool = False
    """Whether checkpoints of it are token ids and nothing else, so that they can go with those of others."""
    mute: bool = False
    """Whether the engine makes no text: it is decoded once, at the end."""
    buffer: int = 0
    """Characters at the end of the text that the engine holds back, as a stop text may begin there."""
    skip: str = ""
    """The text of the whole context without its last, half character: the engine then begins by repeating it."""
    anew: str = ""
    """Reason why its conversation was rendered again, or empty."""
    calls: str = ""
    """The form of a turn that must or may not call functions; empty where the model may choose."""
    why: str = ""
    """Why the text was not held to its form, if it was not."""
    thoughts: int = 0
    """Tokens that the model may think beyond the limit; 0 where it does not think."""
    opened: bool = False
    """Whether its template has opened the block of thoughts."""
    is_raw: bool = False
    """Whether its result is vLLM's own output."""


@dataclass(slots=True)
class EngineRequest(PreparedRequest):
    """A request to the engine, and its state while it runs."""

    inner: str = ""
    ids: list[int] = field(default_factory=list[int])
    """What this attempt has generated."""
    text: str = ""
    """The text of `ids`."""
    cumulative: float = 0.0
    """Sum of the log-probabilities of `ids`."""
    scores: list[float] = field(default_factory=list[float])
    """The log-probability of each of `ids`, if asked for."""
    tops: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    """Ids and log-probabilities of each step's token and of the likeliest beside it, if asked for."""
    processed: bool = False
    """Whether the log-probabilities are those of the distribution that is drawn from."""
    cached: int = 0
    trace: ConfidenceTrace | None = None
    labels: dict[str, int] = field(default_factory=dict[str, int])
    """Token ids of the requested labels."""
    label_scores: dict[str, float] = field(default_factory=dict[str, float])
    """Their log-probabilities."""
    reported_step: int = 0
    """The engine's step at its last report."""
    reported: int = 0
    """Reported tokens, the sum of their log-probabilities, and the length of their text."""
    reported_cumulative: float = 0.0
    reported_text: int = 0

    @property
    def form(self) -> tuple[str, str] | None:
        """The kind and the specification of the form that the text is held to, if the step can do without."""
        form = self.sampling.structured
        if form is not None:
            return None if form.required else (form.kind, json.dumps(form.spec))
        return ("calls", self.calls) if self.calls else None

    @property
    def context(self) -> list[int]:
        """The token ids that the engine gets."""
        return [*self.prompt, *self.past] if self.past else self.prompt

    def fresh(self, text: str) -> str:
        """Return newly generated text as a continuation of `earlier`."""
        if self.skip and text:
            whole, self.skip = self.skip, ""
            return text.removeprefix(whole)
        return text

    def progress(self, ids: Sequence[int], released: int | None = None) -> Progress | None:
        """Return the new part of all generated ids and of the first `released` characters of the text (by default
        all)."""
        upto = len(ids)
        new = upto - self.reported
        whole = self.earlier + self.text if self.earlier else self.text
        text = whole[self.reported_text : released] if self.streams else ""
        if self.joint or (not new and not text):
            return None
        gained, self.reported_cumulative = self.cumulative - self.reported_cumulative, self.cumulative
        fresh = tuple(ids[self.reported :]) if self.tells else ()
        self.reported, self.reported_text = upto, self.reported_text + len(text)
        trace = self.trace
        return Progress(
            text,
            new,
            gained / new if new and self.sampling.logprobs else None,
            fresh,
            trace.group if trace else None,
            trace.lowest if trace else None,
        )

    def unheard(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the unreported ones of all generated ids, and mark them as reported."""
        fresh, self.reported = ids[self.reported :], len(ids)
        return fresh

    def result(self, finish: Finish, ids: Sequence[int], text: str) -> Result:
        """Return the result, with the ids and text of the whole output, stops already cut. Usage and statistics are
        those of what this attempt generated."""
        count = len(self.ids)
        return Result(
            value=text,
            prompt_ids=tuple(self.prompt),
            token_ids=tuple(ids),
            usage=Usage(
                prompt=len(self.prompt) + len(self.past),
                cached=self.cached,
                completion=count,
                sources=Sources(
                    prompt="ids", cached="server" if count else "unknown", completion="ids", thoughts="ids"
                ),
            ),
            finish=finish,
            logprob=self.cumulative / count if self.sampling.logprobs and count else None,
            signals=self.trace.signals() if self.trace else None,
            anew=self.anew,
            why=self.why,
            labels=self.label_scores,
            drawn=self.drawn(ids),
        )

    def drawn(self, ids: Sequence[int]) -> TokenDraws | None:
        """Return how the output's tokens were drawn, if asked for. Of what a lost attempt drew nothing is known."""
        if not self.sampling.token_logprobs or len(self.scores) < len(self.ids):
            return None
        new = len(ids) - len(self.past)
        ended = bool(self.ids) and len(self.ids) == new + 1
        end = (self.ids[-1], self.scores[new]) if ended else None
        # A code leaves one token of each distribution, so vLLM finds every token that it draws certain.
        coded = self.processed and self.sampling.arithmetic is not None and self.sampling.draws
        known = [] if self.past or coded else self.scores[:new]
        return token_draws(self.sampling, known, end, self.processed, "calls" if self.calls else "")


def take_up(order: EngineRequest, past: Sequence[int], prompter: Prompter, stops: Sequence[str]) -> None:
    """Continue a request after the token ids of a lost attempt, whose text was reported as far as `buffer` allowed.
    `stops` are the texts that end it."""
    order.past, order.tells = tuple(past), True
    text = prompter.after(order.prompt, past)
    order.earlier = text.rstrip("\ufffd")
    if order.earlier != text:
        order.skip = prompter.text(order.context).rstrip("\ufffd")
    order.reported_text = max(0, len(order.earlier) - order.buffer)
    order.joint = opening(order.earlier, stops)


def ended(
    order: EngineRequest, prompter: Prompter, ends: Sequence[int], named: Sequence[int], stops: Sequence[str]
) -> Result | None:
    """Return the result of a request whose earlier tokens end it already: its report was lost with the worker.
    `ends` are the token ids of the model's own end, `named` those that the request names, `stops` the texts."""
    past, keep = order.past, order.sampling.keep_stop
    at = next((place for place, id_ in enumerate(past) if id_ in ends or id_ in named), None)
    if at is not None:
        kept = past[: at + keep]
        rest = prompter.text(past[at:])
        text = order.earlier if keep and past[at] in named else order.earlier.removesuffix(rest)
        return order.result("stop", kept, text)
    if (stop := first_stop(order.earlier, stops)) is not None:
        text = order.earlier[: stop[1] if keep else stop[0]]
        return order.result("stop", prompter.within(past, text), text)
    if len(past) >= order.sampling.max_tokens:
        return order.result("length", past, order.earlier)
    return None


LEAST = -9999.0
"""OpenAI's placeholder for a missing log-probability."""


def spelled(prompter: Prompter, context: Sequence[int], rows: Sequence[Any], text: str) -> tuple[Token, ...]:
    """Return the tokens that spell an output's text; none if they do not.

    `context` are the ids before them. `rows` are pairs of arrays of shape (tokens, 1 + most): ids and log-probabilities
    (nats, at temperature 1), the generated token's first, then those of the likeliest. A token that ends within a
    character has no text, and the one that completes it has the whole character. The last is cut where the text is.
    """
    ids = list(context[-TAIL_TOKENS:])
    begin, known = 0, len(ids)
    told: list[Token] = []
    left = text
    for places, scores in (row for pair in rows for row in zip(*(array.tolist() for array in pair), strict=True)):
        if not left:
            break
        before = prompter.text(ids[begin:known])
        words = [_added(prompter, before, [*ids[begin:], place]) for place in places]
        near = [max(LEAST, min(0.0, score)) for score in scores]
        word = words[0][: len(left)]
        if not left.startswith(word):
            return ()
        left = left[len(word) :]
        told.append(Token(text=word, logprob=near[0], top=tuple(zip(words[1:], near[1:], strict=True))))
        ids.append(places[0])
        if word:
            begin, known = known, len(ids)
    return () if left else tuple(told)


def _added(prompter: Prompter, before: str, ids: Sequence[int]) -> str:
    """Return the text that the last of some ids adds to the text of those before it."""
    text = prompter.text(ids)
    if text.endswith("\ufffd"):
        return ""
    return text[len(before) :] if text.startswith(before) else prompter.text(ids[-1:])
