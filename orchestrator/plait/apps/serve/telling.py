"""Events of a run for clients: text of the answer, steps that begin and end, their text, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...core.errors import DependencyFailed
from ...core.ops import ModelCall
from ...core.record import StepRecord
from ...core.result import Failure, Token
from ...core.tools.calls import OPEN
from ...core.tools.context import Question
from ...core.values import as_text
from ...runtime.client.answer import Answer, ApprovalRequested, RunEnded, StepEvent, TextDelta
from ...runtime.client.handle import Handle
from .errors import ApiError, of_failure, unsupported
from .tenants import ServedRun

__all__ = [
    "AnswerText",
    "Asked",
    "Ended",
    "Parts",
    "StepBegan",
    "StepEnded",
    "StepSaid",
    "Thought",
    "Told",
    "read_through",
    "tell",
    "tell_each",
]
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class AnswerText:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class StepBegan:
    """A branch runs."""

    step: StepRecord


@dataclass(frozen=True, slots=True)
class StepSaid:
    """A branch wrote something."""

    step: str
    text: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A branch is over."""

    step: StepRecord


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool asks a person, and its step waits for the answer."""

    question: Question


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over. Always the last."""

    answer: Answer
    again: bool
    """Whether the streamed text differs from the beginning of the answer: a worker was lost, and its retry wrote
    another text."""

    @property
    def text(self) -> str:
        """The text that a client gets."""
        return self.answer.message.text

    def check(self, must_call: bool = False) -> None:
        """Raise `ApiError` for a run that ended without a value, or whose text was restarted."""
        gave_nothing(self.answer, must_call)
        if self.again:
            message = "the worker was lost while it answered, and its retry gave another text: send the request again"
            raise ApiError(503, message, code="answer_begun_anew", retry=True)


Told = AnswerText | Thought | StepBegan | StepSaid | StepEnded | Asked | Ended


async def read_through(handle: Handle) -> None:
    """Read the news of a run that others follow, so that its model calls are streamed."""
    async for news in handle.news(["answer"]):
        assert isinstance(news, RunEnded)


async def tell(
    handle: Handle, steps: bool, raw: bool = False, follow: Literal["", "from_start", "from_now"] = ""
) -> AsyncGenerator[Told, None]:
    """Yield the events of a run, its end last; with `steps` also those of its branches.

    The answer's text is streamed if the plan's output is one model call; else it comes in one piece. A call that is
    retried is not streamed further: the rest comes with the end. Function calls are left out of the text, and thoughts
    are separate events, unless `raw` is set.

    Closing the iterator cancels the run, unless `follow` is set: `from_start` yields all events, `from_now` the further
    ones. Questions of tools are then yielded too. `from_now` does not know which text was already streamed, so the
    answer comes in one piece.
    """
    answers, told = "" if follow == "from_now" else _answering(handle), ""
    parts = RawText() if raw else Parts()
    open_steps: set[str] = set()
    async for news in handle.follow() if follow else handle.news(None if steps else ("text", "answer")):
        match news:
            case TextDelta() if news.step == answers:
                told += news.text
                for piece in parts.feed(news.text):
                    yield piece
            case TextDelta() if steps and news.step in open_steps:
                yield StepSaid(news.step, news.text)
            case StepEvent(record=step) if steps and step.kind != "join":
                if step.step == answers and step.tries > 1:
                    answers = ""
                if step.step != answers and step.state == "running" and step.step not in open_steps:
                    open_steps.add(step.step)
                    yield StepBegan(step)
                if step.ended and step.step in open_steps:
                    open_steps.discard(step.step)
                    yield StepEnded(step)
            case ApprovalRequested(question=question) if follow:
                yield Asked(question)
            case RunEnded(answer=answer):
                whole = answer.written
                again = not whole.startswith(told) and bool(whole or not answer.at_length)
                for piece in () if again else parts.close(whole[len(told) :], answer.message.text):
                    yield piece
                yield Ended(answer, again)
            case _:
                pass


async def tell_each(lives: Sequence[ServedRun], raw: bool = False) -> AsyncGenerator[tuple[int, Told], None]:
    """Yield what happens in several runs as it comes, each piece with the place of its run."""
    if len(lives) == 1:
        async for news in tell(lives[0].handle, lives[0].steps, raw):
            yield 0, news
        return
    waiting: asyncio.Queue[tuple[int, Told] | None] = asyncio.Queue(len(lives))  # runs keep the client's pace

    async def follow(place: int, live: ServedRun) -> None:
        async for news in tell(live.handle, live.steps, raw):
            await waiting.put((place, news))

    async def all_of_them() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, live in enumerate(lives):
                    group.create_task(follow(place, live))
        finally:
            await waiting.put(None)

    following = asyncio.ensure_future(all_of_them())
    try:
        while (item := await waiting.get()) is not None:
            yield item
        await following  # raises what broke down
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class Parts:
    """Separates thoughts (`<think>…</think>` at the beginning) and function calls from a text that arrives in pieces.
    From a possible call on, the text is held back until the end; the answer's message then shows which part is text.
    The streamed text is thus the message's text, however the pieces were cut."""

    def __init__(self) -> None:
        self._told = ""
        self._kind: type[AnswerText] | type[Thought] | None = None
        self._rest = ""
        self._held = False

    def feed(self, text: str, last: bool = False) -> list[AnswerText | Thought]:
        """Add a piece, and return the parts whose kind is now certain."""
        self._rest += text
        parts: list[AnswerText | Thought] = []
        if self._kind is None:
            bare = self._rest.lstrip()
            if bare.startswith(_THINK):
                self._kind, self._rest = Thought, bare.removeprefix(_THINK).lstrip()
            elif last or not _THINK.startswith(bare[: len(_THINK)]):
                self._kind = AnswerText
            else:
                return parts
        if self._kind is Thought:
            thought, end, rest = self._rest.partition(_THOUGHT)
            keep = 0 if end or last else _overlap(thought, _THOUGHT)
            told = thought[: len(thought) - keep]
            parts += [Thought(told)] if told else []
            self._rest = rest if end else thought[len(thought) - keep :]
            if not end:
                return parts
            self._kind, self._rest = AnswerText, self._rest.lstrip()
        if self._held:
            return parts
        plain, call, _ = self._rest.partition(OPEN)
        self._held = bool(call)
        keep = 0 if call else _overlap(plain, OPEN)
        told = plain[: len(plain) - keep].rstrip()  # spaces before a call, or at the end, are perhaps no content
        self._rest = self._rest[len(told) :]
        self._told += told
        return parts + ([AnswerText(told)] if told else [])

    def close(self, rest: str, content: str) -> list[AnswerText | Thought]:
        """Take the last of the text and the message's content; return the parts that have not been returned yet."""
        parts = self.feed(rest, last=True)
        more = content[len(self._told) :] if content.startswith(self._told) else ""
        return parts + ([AnswerText(more)] if more else [])


class RawText:
    """Tells a text as it is, in the way of `Parts`."""

    def feed(self, text: str) -> list[AnswerText]:
        """Take a piece, and return it."""
        return [AnswerText(text)] if text else []

    def close(self, rest: str, _: str) -> list[AnswerText]:
        """Take the last of the text, and return it."""
        return self.feed(rest)


def _overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of a text that may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def gave_nothing(answer: Answer, must_call: bool = False) -> None:
    """Raise `ApiError` for a run that ended without a value, or without the call of a function that had to come."""
    if must_call and not answer.message.tool_calls and not answer.cut:
        raise ApiError(500, "the model called no function, and `tool_choice` requires it: ask again, or say auto",
                       code="no_tool_call", retry=False)  # fmt: skip
    if answer.value is None and answer.status != "partial" and not answer.at_length:
        if answer.failure is not None:
            raise of_failure(answer.failure, _causes(answer))
        raise ApiError(500, f"the run was {answer.status}: {answer.why or 'it has no value'}", retry=False)


def _causes(answer: Answer) -> list[Failure]:
    """Return the failures that steps of a run caused themselves, without those that followed from other steps."""
    failures = [step.failure for step in answer.trace if step.failure is not None]
    return [failure for failure in failures if failure.kind != DependencyFailed.__name__]


def tokens_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the answer's tokens with their log-probabilities. Raises `ApiError` where one model call's own tokens are
    not what the client gets."""

    def of(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    if answer.message.text and not _spell(answer.tokens, answer.message.text):
        raise unsupported("logprobs", "the answer is not the text of one model call whose tokens are known: ask a "
                          "planner such as plait/single over a worker that tells them, or leave them out")  # fmt: skip
    return [
        {**of(token.text, token.logprob), "top_logprobs": [of(*top) for top in token.top]} for token in answer.tokens
    ]


def _spell(tokens: Sequence[Token], text: str) -> bool:
    """Return whether a text is that of these tokens. A stop text may have cut it within the last token."""
    spelled = "".join(token.text for token in tokens)
    if not tokens or "\ufffd" in spelled:  # half a character is no text
        return bool(tokens)
    before = len(spelled) - len(tokens[-1].text)
    return spelled.strip() == text.strip() or (spelled.startswith(text) and before < len(text))


def _answering(handle: Handle) -> str:
    """Return the id of the step whose text is the answer's from its first character on; empty if none is."""
    for step in handle.plan.steps:
        if (
            step.name == handle.plan.output
            and isinstance(step.op, ModelCall)
            and not step.expands
            and not step.op.after
        ):
            return f"{handle.run}:{step.name}"
    return ""


def step_of(step: StepRecord) -> dict[str, Any]:
    """Return the description of a step for clients."""
    return {
        "id": step.step,
        "name": step.path,
        "kind": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "reason": step.reason if step.state in ("failed", "cancelled") else "",
        "cause": step.cause,
    }


def written(step: StepRecord) -> str:
    """Return the text that a step has written."""
    return step.text if step.value is None else as_text(step.value)
