"""The events of one choice of an answer, from which every dialect makes its stream and its whole answer.

A choice is a sequence of *parts*: the model's reasoning, the text, the steps of the plan (if the client wants them) and
the calls of the client's functions. Each part begins, grows and ends; then the choice ends or fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from plait.core.chat import MessageToolCall
from plait.core.errors import DependencyFailed
from plait.core.ops import ModelCall
from plait.core.record import StepRecord
from plait.core.result import Token
from plait.core.tools.calls import OPEN
from plait.core.tools.context import Question
from plait.core.values import as_text
from plait.runtime.client.answer import Answer, ApprovalRequested, RunEnded, RunEvent, StepEvent, TextDelta
from plait.runtime.client.handle import Handle

from .errors import ApiError, of_failure, unsupported
from .tenants import ServedRun

__all__ = [
    "AnswerPart", "AnswerText", "CallPart", "ChoiceBuilder", "ChoiceEnded", "ChoiceEvent", "ChoiceFailed",
    "PartBegan", "PartDelta", "PartEnded", "QuestionAsked", "ReasoningPart", "ServedChoice", "StepPart",
    "TextSplitter", "check_answer", "read_choice", "stream_choices", "stream_model_calls", "text_of_step",
]  # fmt: skip
Follow = Literal["", "from_start", "from_now"]
_THINK, _THINK_END = "<think>", "</think>"


@dataclass(slots=True)
class AnswerPart:
    """A part of a choice."""

    index: int
    """Its position among the parts of the choice, in the order in which they begin."""
    id: str = ""
    pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


class AnswerText(AnswerPart):
    """The text of the answer."""


class ReasoningPart(AnswerPart):
    """The model's reasoning before its answer."""


@dataclass(slots=True)
class StepPart(AnswerPart):
    """A step of the plan, and the text that it generates."""

    step: StepRecord = field(kw_only=True)


@dataclass(slots=True)
class CallPart(AnswerPart):
    """A call of a function of the client; its text is the arguments."""

    call: MessageToolCall = field(kw_only=True)
    number: int = field(kw_only=True)
    """Its position among the calls."""


class PartBegan(NamedTuple):
    """A part begins."""

    part: AnswerPart


class PartDelta(NamedTuple):
    """More text of a part."""

    part: AnswerPart
    text: str


class PartEnded(NamedTuple):
    """A part is complete."""

    part: AnswerPart
    tokens: Sequence[dict[str, Any]] = ()
    """The tokens of the text with their log-probabilities, if the client wants them."""
    is_cut: bool = False


class QuestionAsked(NamedTuple):
    """A tool asks a person, and its step waits for the answer."""

    question: Question


class ChoiceEnded(NamedTuple):
    """The choice is complete. Always the last event."""

    answer: Answer
    tokens: list[dict[str, Any]] | None = None
    """The tokens with their log-probabilities; `None` if the client does not want them."""


class ChoiceFailed(NamedTuple):
    """The run ended without an answer to send. Always the last event."""

    answer: Answer
    error: ApiError


ChoiceEvent = PartBegan | PartDelta | PartEnded | QuestionAsked | ChoiceEnded | ChoiceFailed


@dataclass(frozen=True, slots=True)
class ServedChoice:
    """A complete choice."""

    run: ServedRun
    answer: Answer
    parts: Sequence[AnswerPart]
    tokens: list[dict[str, Any]] | None

    @property
    def text(self) -> str | None:
        """The text; `None` if the answer only calls functions."""
        return next((part.text for part in self.parts if isinstance(part, AnswerText)), None)

    @property
    def reasoning(self) -> str:
        """The reasoning; empty if the client does not want it."""
        return next((part.text for part in self.parts if isinstance(part, ReasoningPart)), "")

    @property
    def calls(self) -> list[MessageToolCall]:
        """The calls of the client's functions."""
        return [part.call for part in self.parts if isinstance(part, CallPart)]


class ChoiceBuilder:
    """Builds the events of one choice. `raw`: the text contains the reasoning and the calls."""

    def __init__(
        self, *, reasoning: bool = True, must_call: bool = False, logprobs: bool = False, raw: bool = False
    ) -> None:
        self._wants_reasoning, self._must_call, self._logprobs, self._raw = reasoning, must_call, logprobs, raw
        self._parts = 0
        self._open: AnswerText | ReasoningPart | None = None
        self._has_text = False
        self._received: list[str] = []
        """The text of the answer's model call so far."""
        self._splitter = TextSplitter()
        self._steps: dict[str, StepPart] = {}

    def add_text(self, text: str) -> Iterator[ChoiceEvent]:
        """Add text that the answer's model call generated."""
        self._received.append(text)
        yield from self._grow([("text", text)] if self._raw else self._splitter.feed(text))

    def add_step(self, step: StepRecord) -> Iterator[ChoiceEvent]:
        """Add a step that began or ended."""
        part = self._steps.get(step.step)
        if part is None and step.state == "running":
            self._steps[step.step] = part = StepPart(self._next(), step.step, step=step)
            yield PartBegan(part)
        if part is not None and step.ended:
            del self._steps[step.step]
            part.step, part.pieces = step, [text_of_step(step)]
            yield PartEnded(part)

    def add_step_text(self, step: str, text: str) -> Iterator[ChoiceEvent]:
        """Add text that a step generated."""
        if (part := self._steps.get(step)) is not None:
            yield PartDelta(part, text)

    def end(self, answer: Answer) -> Iterator[ChoiceEvent]:
        """Yield the events that are still missing, with the end of the choice."""
        written, turn, received = answer.written, answer.message, "".join(self._received)
        restarted = not written.startswith(received) and bool(written or not answer.at_length)
        if not restarted:
            rest = written[len(received) :]
            yield from self._grow([("text", rest)] if self._raw else self._rest(rest, turn.text, turn.reasoning))
        try:
            check_answer(answer, self._must_call)
            if restarted:
                raise ApiError(503, "the worker was lost while it answered, and its retry gave another text: send the "
                               "request again", code="answer_begun_anew", retry=True)  # fmt: skip
            tokens = describe_tokens(answer) if self._logprobs else None
        except ApiError as error:
            yield ChoiceFailed(answer, error)
            return
        calls = () if self._raw else turn.tool_calls
        if not self._has_text and not calls:
            yield from self._open_part(AnswerText)
        yield from self._close_part(tokens or (), answer.cut)
        for number, call in enumerate(calls):
            part = CallPart(self._next(), call.id, [call.function.arguments], call=call, number=number)
            yield from (PartBegan(part), PartDelta(part, part.text), PartEnded(part))
        yield ChoiceEnded(answer, tokens)

    def replay(self, answer: Answer, steps: bool = False) -> Iterator[ChoiceEvent]:
        """Yield the events of a run that has ended."""
        for step in answer.trace if steps else ():
            if step.kind != "join":
                part = StepPart(self._next(), step.step, [text_of_step(step)], step=step)
                yield from (PartBegan(part), PartEnded(part))
        yield from self.end(answer)

    def _rest(self, rest: str, text: str, reasoning: str) -> list[tuple[str, str]]:
        """Return the pieces of text and reasoning that have not been streamed."""
        if self._received:
            return self._splitter.close(rest, text)
        return [("reasoning", reasoning), ("text", text)]

    def _grow(self, pieces: Sequence[tuple[str, str]]) -> Iterator[ChoiceEvent]:
        for kind, text in pieces:
            cls = AnswerText if kind == "text" else ReasoningPart
            if not text or (cls is ReasoningPart and not self._wants_reasoning):
                continue
            yield from self._open_part(cls)
            assert self._open is not None
            self._open.pieces.append(text)
            yield PartDelta(self._open, text)

    def _open_part(self, cls: type[AnswerText | ReasoningPart]) -> Iterator[ChoiceEvent]:
        if not isinstance(self._open, cls):
            yield from self._close_part()
            self._open = cls(self._next())
            self._has_text = self._has_text or cls is AnswerText
            yield PartBegan(self._open)

    def _close_part(self, tokens: Sequence[dict[str, Any]] = (), is_cut: bool = False) -> Iterator[ChoiceEvent]:
        if self._open is not None:
            yield PartEnded(self._open, tokens, is_cut)
            self._open = None

    def _next(self) -> int:
        self._parts += 1
        return self._parts - 1


def _builder(run: ServedRun, raw: bool) -> ChoiceBuilder:
    wanted = {"reasoning": run.thoughts, "must_call": run.must_call, "logprobs": run.likeliest is not None}
    return ChoiceBuilder(**wanted, raw=raw)


async def stream_model_calls(handle: Handle) -> None:
    """Read the events of a run that others follow, so that its model calls are streamed."""
    async for event in handle.news(["answer"]):
        assert isinstance(event, RunEnded)


async def stream_choice(run: ServedRun, raw: bool, follow: Follow) -> AsyncGenerator[ChoiceEvent, None]:
    """Yield the events of a run; those of its steps if the client wants them.

    The answer's text is streamed if the plan's output is one model call; else it comes in one piece. A call that is
    retried is not streamed further: the rest comes with the end.

    Closing the iterator cancels the run, unless `follow` is set: `from_start` yields all events, `from_now` the further
    ones. Questions of tools are then yielded too. `from_now` does not know which text was already streamed, so the
    answer comes in one piece.
    """
    handle, steps = run.handle, run.steps
    build = _builder(run, raw)
    answering = "" if follow == "from_now" else _answering_step(handle)
    attempt = 0
    async for event in _read_events(run, follow):
        made: Iterator[ChoiceEvent] = iter(())
        match event:
            case TextDelta() if event.step == answering:
                attempt = attempt or event.attempt
                if event.attempt == attempt:
                    made = build.add_text(event.text)
            case TextDelta() if steps:
                made = build.add_step_text(event.step, event.text)
            case StepEvent(record=step) if steps and step.kind != "join":
                if step.step == answering and step.tries > 1:
                    answering = ""
                if step.step != answering:
                    made = build.add_step(step)
            case ApprovalRequested(question=question) if follow:
                made = iter((QuestionAsked(question),))
            case RunEnded(answer=answer):
                made = build.end(answer)
            case _:
                pass
        for result in made:
            yield result


async def stream_choices(
    runs: Sequence[ServedRun], raw: bool = False, follow: Follow = ""
) -> AsyncGenerator[tuple[int, ChoiceEvent], None]:
    """Yield the events of several runs as they come, each with the position of its run."""
    if len(runs) == 1:
        async for event in stream_choice(runs[0], raw, follow):
            yield 0, event
        return
    waiting: asyncio.Queue[tuple[int, ChoiceEvent] | None] = asyncio.Queue(len(runs))  # runs keep the client's pace

    async def put(place: int, run: ServedRun) -> None:
        async for event in stream_choice(run, raw, follow):
            await waiting.put((place, event))

    async def follow_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, run in enumerate(runs):
                    group.create_task(put(place, run))
        finally:
            await waiting.put(None)

    following = asyncio.ensure_future(follow_all())
    try:
        while (item := await waiting.get()) is not None:
            yield item
        await following  # raises what broke down
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def read_choice(run: ServedRun, answer: Answer, raw: bool = False) -> ServedChoice:
    """Return the choice of a run that has ended. Raises `ApiError` for a run without an answer to send."""
    parts: list[AnswerPart] = []
    for event in _builder(run, raw).replay(answer):
        match event:
            case PartEnded(part):
                parts.append(part)
            case ChoiceFailed(error=error):
                raise error
            case ChoiceEnded(tokens=tokens):
                return ServedChoice(run, answer, parts, tokens)
            case _:
                pass
    raise AssertionError("a choice without an end")


class TextSplitter:
    """Separates reasoning (`<think>…</think>` at the beginning) and function calls from a text that arrives in pieces.
    From a possible call on, the text is held back until the end; the answer's message then shows which part is text.
    The streamed text is thus the message's text, however the pieces were cut."""

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._kind = ""
        self._rest = ""
        self._held = False

    def feed(self, text: str, last: bool = False) -> list[tuple[str, str]]:
        """Add a piece, and return those pieces of `text` and `reasoning` whose kind is now certain."""
        self._rest += text
        pieces: list[tuple[str, str]] = []
        if not self._kind:
            bare = self._rest.lstrip()
            if bare.startswith(_THINK):
                self._kind, self._rest = "reasoning", bare.removeprefix(_THINK).lstrip()
            elif last or not _THINK.startswith(bare[: len(_THINK)]):
                self._kind = "text"
            else:
                return pieces
        if self._kind == "reasoning":
            reasoning, end, rest = self._rest.partition(_THINK_END)
            keep = 0 if end or last else _overlap(reasoning, _THINK_END)
            sent = reasoning[: len(reasoning) - keep]
            pieces += [("reasoning", sent)] if sent else []
            self._rest = rest if end else reasoning[len(reasoning) - keep :]
            if not end:
                return pieces
            self._kind, self._rest = "text", self._rest.lstrip()
        if self._held:
            return pieces
        plain, call, _ = self._rest.partition(OPEN)
        self._held = bool(call)
        keep = 0 if call else _overlap(plain, OPEN)
        sent = plain[: len(plain) - keep].rstrip()  # spaces before a call, or at the end, are perhaps no content
        self._rest = self._rest[len(sent) :]
        self._sent.append(sent)
        return pieces + ([("text", sent)] if sent else [])

    def close(self, rest: str, content: str) -> list[tuple[str, str]]:
        """Take the last of the text and the message's content; return the pieces that have not been returned yet."""
        pieces = self.feed(rest, last=True)
        sent = "".join(self._sent)
        more = content[len(sent) :] if content.startswith(sent) else ""
        return pieces + ([("text", more)] if more else [])


def _overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of a text that may be the beginning of a tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


def _read_events(run: ServedRun, follow: Follow) -> AsyncIterator[RunEvent]:
    """Return the events of a run: those for a further follower, or those that the client of the run wants."""
    if follow:
        return run.handle.follow()
    return run.handle.news(None if run.steps else ("text", "answer"))


def _answering_step(handle: Handle) -> str:
    """Return the id of the step whose text is the answer's from its first character on; empty if none is."""
    for step in handle.plan.steps:
        is_output = step.name == handle.plan.output and not step.expands
        if is_output and isinstance(step.op, ModelCall) and not step.op.after:
            return f"{handle.run}:{step.name}"
    return ""


def check_answer(answer: Answer, must_call: bool = False) -> None:
    """Raise `ApiError` for a run that ended without a value, or without the call of a function that had to come."""
    if must_call and not answer.message.tool_calls and not answer.cut:
        raise ApiError(500, "the model called no function, and `tool_choice` requires it: ask again, or say auto",
                       code="no_tool_call", retry=False)  # fmt: skip
    if answer.value is None and answer.status != "partial" and not answer.at_length:
        if answer.failure is not None:
            failures = [step.failure for step in answer.trace if step.failure is not None]
            raise of_failure(answer.failure, [cause for cause in failures if cause.kind != DependencyFailed.__name__])
        raise ApiError(500, f"the run was {answer.status}: {answer.why or 'it has no value'}", retry=False)


def describe_tokens(answer: Answer) -> list[dict[str, Any]]:
    """Return the answer's tokens with their log-probabilities. Raises `ApiError` if the answer is not the text of one
    model call whose tokens are known."""

    def describe(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}

    if answer.message.text and not _spell(answer.tokens, answer.message.text):
        raise unsupported("logprobs", "the answer is not the text of one model call whose tokens are known: ask a "
                          "planner such as plait/single over a worker that tells them, or leave them out")  # fmt: skip
    return [
        {**describe(token.text, token.logprob), "top_logprobs": [describe(*top) for top in token.top]}
        for token in answer.tokens
    ]


def _spell(tokens: Sequence[Token], text: str) -> bool:
    """Return whether a text is that of these tokens. A stop text may have cut it within the last token."""
    spelled = "".join(token.text for token in tokens)
    if not tokens or "\ufffd" in spelled:  # half a character is no text
        return bool(tokens)
    before = len(spelled) - len(tokens[-1].text)
    return spelled.strip() == text.strip() or (spelled.startswith(text) and before < len(text))


def text_of_step(step: StepRecord) -> str:
    """Return the text that a step generated."""
    return step.text if step.value is None else as_text(step.value)
