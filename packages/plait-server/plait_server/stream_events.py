"""The events of one choice of an answer, from which every dialect makes its stream and its whole answer.

A choice is a sequence of *parts*: the model's reasoning, the text, the steps of the plan (if the client wants them) and
the calls of the client's functions. Each part begins, grows and ends; then the choice ends or fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any, Literal, NamedTuple

from plait.core.chat import FunctionCall, MessageToolCall, call_id
from plait.core.errors import DependencyFailed
from plait.core.record import StepRecord
from plait.core.result import Token
from plait.core.tools.calls import OPEN
from plait.core.tools.context import Question
from plait.core.values import as_text
from plait.runtime.client.answer import Answer, ApprovalRequested, RunEnded, RunEvent, StepEvent, TextDelta
from plait.runtime.client.handle import Handle

from .errors import ApiError, of_failure, unsupported
from .tenants import ServedRun
from .text_splitter import Piece, TextSplitter

Follow = Literal["", "from_start", "from_now"]
_WITHOUT_STEPS = ("text", "ask", "answer")
_TYPED_STARTS = ("{", "<think>")
"""Beginnings of a text that is read by a schema and streamed."""
_HEAD_CHARS = 64


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


@dataclass(slots=True)
class AnswerText(AnswerPart):
    """The text of the answer, or of a turn of an agent before its calls."""

    follows: bool = False
    """Whether the choice has text before it."""


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


@dataclass(slots=True, kw_only=True, eq=False)
class ChoiceBuilder:
    """Builds the events of one choice."""

    run: str = ""
    reasoning: bool = True
    """Whether the client wants the reasoning."""
    must_call: bool = False
    logprobs: bool = False
    raw: bool = False
    """The text contains the reasoning and the calls."""
    typed: bool = False
    """The text is JSON of a schema."""
    received: list[str] = field(default_factory=list[str])
    """The text of the answer's model call so far."""
    _head: str = ""
    """The beginning of a text that is not streamed yet."""
    _reasoning: str = ""
    """Its reasoning so far, if the server sends it apart."""
    _splitter: TextSplitter | None = None
    _is_turn: bool = False
    """The text is a turn's of an agent, which calls functions of the server."""
    _parts: int = 0
    _calls: int = 0
    """Calls whose part has begun."""
    _open: AnswerText | ReasoningPart | CallPart | None = None
    _has_text: bool = False
    _steps: dict[str, StepPart] = field(default_factory=dict[str, StepPart])

    def begin_turn(self) -> Iterator[ChoiceEvent]:
        """Begin the next turn of an agent."""
        yield from self._close_part()
        self.received, self._reasoning, self._splitter = [], "", None
        self._is_turn, self.raw = True, False

    def add_text(self, text: str, reasoning: str = "") -> Iterator[ChoiceEvent]:
        """Add text that the answer's model call generated."""
        if reasoning and not self.raw:
            self._reasoning += reasoning
            yield from self._grow([("reasoning", reasoning)])
        if not text:
            return
        text, self._head = self._head + text, ""
        if self.typed and not self.received and not text.lstrip().startswith(_TYPED_STARTS):
            self._head = text[:_HEAD_CHARS]  # JSON within other text comes at the end, when its place is known
            return
        self.received.append(text)
        self._splitter = self._splitter or TextSplitter()
        yield from self._grow([("text", text)] if self.raw else self._splitter.feed(text))

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
        if answer.cut and OPEN in answer.written and not self.received:
            yield from self.add_text(answer.written, answer.reasoning)  # the call that a limit has cut, as in a stream
        turn, mismatch = answer.message, self._mismatch(answer)
        if mismatch is not None and self._is_turn:
            yield from self.begin_turn()
            mismatch = None
        if mismatch is None:
            yield from self._grow(self._rest(answer))
        try:
            check_answer(answer, self.must_call)
            if mismatch is not None:
                raise mismatch
            tokens = describe_tokens(answer) if self.logprobs else None
        except ApiError as error:
            yield ChoiceFailed(answer, error)
            return
        calls = () if self.raw else turn.tool_calls[self._calls :]
        if not self._has_text and not calls and not self._calls:
            yield from self._open_part(AnswerText)
        yield from self._close_part(tokens or (), answer.cut)
        for call in calls:
            yield from self._begin_call(call)
            yield from self._grow([("arguments", call.function.arguments)])
            yield from self._close_part()
        yield ChoiceEnded(answer, tokens)

    def replay(self, answer: Answer, steps: bool = False) -> Iterator[ChoiceEvent]:
        """Yield the events of a run that has ended."""
        for step in answer.trace if steps else ():
            if step.kind != "join":
                part = StepPart(self._next(), step.step, [text_of_step(step)], step=step)
                yield from (PartBegan(part), PartEnded(part))
        yield from self.end(answer)

    def _mismatch(self, answer: Answer) -> ApiError | None:
        """Return the error of an answer that is another text than the one that was streamed."""
        if answer.written.startswith("".join(self.received)) or not (answer.written or not answer.at_length):
            return None
        if not self.typed:
            return ApiError(503, "the worker was lost while it answered, and its retry gave another text: send the "
                            "request again", code="answer_begun_anew", retry=True)  # fmt: skip
        sent = "" if self._splitter is None else self._splitter.sent.lstrip()
        with contextlib.suppress(ValueError):  # a model may write on behind its JSON
            if JSONDecoder().raw_decode(sent)[0] == answer.value:
                return None
        return ApiError(500, "the streamed text did not fit its schema, and its repair is another text: send the "
                        "request again without `stream`", code="answer_repaired", retry=True)  # fmt: skip

    def _rest(self, answer: Answer) -> list[Piece]:
        """Return the pieces of text and reasoning that have not been streamed."""
        written, turn, received = answer.written, answer.message, "".join(self.received)
        if self.raw:
            return [("text", written[len(received) :])]
        if self._splitter is not None:
            pieces = self._splitter.close(written[len(received) :], turn.text)
            if isinstance(self._open, CallPart):  # the limit of tokens has cut it
                pieces = [(k, text.partition(OPEN)[0].rstrip() if k == "text" else text) for k, text in pieces]
            return pieces
        is_known = turn.reasoning.startswith(self._reasoning)
        return [("reasoning", turn.reasoning[len(self._reasoning) :] if is_known else ""), ("text", turn.text)]

    def _grow(self, pieces: Sequence[Piece]) -> Iterator[ChoiceEvent]:
        for kind, text in pieces:
            match kind:
                case "call" if self._is_turn:
                    yield from self._close_part()
                case "call":
                    call = MessageToolCall(id=call_id(self._calls + 1, self.run), function=FunctionCall(name=text))
                    yield from self._begin_call(call)
                case "ended":
                    yield from self._close_part()
                case "arguments" if self._is_turn and not isinstance(self._open, CallPart):
                    continue
                case "reasoning" if not self.reasoning:
                    continue
                case "text" | "reasoning" if text:
                    yield from self._open_part(AnswerText if kind == "text" else ReasoningPart)
                case _:
                    pass
            if text and kind in ("text", "reasoning", "arguments"):
                assert self._open is not None
                self._open.pieces.append(text)
                yield PartDelta(self._open, text)

    def _open_part(self, cls: type[AnswerText | ReasoningPart]) -> Iterator[ChoiceEvent]:
        if not isinstance(self._open, cls):
            yield from self._close_part()
            self._open = cls(self._next())
            if isinstance(self._open, AnswerText):
                self._open.follows, self._has_text = self._has_text, True
            yield PartBegan(self._open)

    def _begin_call(self, call: MessageToolCall) -> Iterator[ChoiceEvent]:
        yield from self._close_part()
        self._open = CallPart(self._next(), call.id, call=call, number=self._calls)
        self._calls += 1
        yield PartBegan(self._open)

    def _close_part(self, tokens: Sequence[dict[str, Any]] = (), is_cut: bool = False) -> Iterator[ChoiceEvent]:
        part, self._open = self._open, None
        if isinstance(part, CallPart):
            function = FunctionCall(name=part.call.function.name, arguments=part.text)
            part.call = part.call.model_copy(update={"function": function})
        if part is not None:
            yield PartEnded(part, tokens if isinstance(part, AnswerText) else (), is_cut)

    def _next(self) -> int:
        self._parts += 1
        return self._parts - 1


def _builder(run: ServedRun, raw: bool) -> ChoiceBuilder:
    return ChoiceBuilder(
        run=run.handle.run,
        reasoning=run.thoughts,
        must_call=run.must_call,
        logprobs=run.likeliest is not None,
        raw=raw,
        typed=run.handle.request.output is not None,
    )


async def stream_model_calls(handle: Handle) -> None:
    """Read the events of a run that others follow, so that its model calls are streamed."""
    async for event in handle.news(["answer"]):
        assert isinstance(event, RunEnded)


class RunReader:
    """Makes the events of a choice from those of its run.

    The answer's text is streamed if the plan's output is one model call, JSON by a schema included, and so is the text
    of each turn of an agent, until the turn calls a tool; else it comes in one piece. A call that is retried is not
    streamed further: the rest comes with the end. `skipped`: running steps whose text may have been streamed before.
    """

    def __init__(self, run: ServedRun, raw: bool, skipped: set[str]) -> None:
        self._build, self._steps, self._skipped = _builder(run, raw), run.steps, skipped
        self._output = f"{run.handle.run}:{run.handle.plan.output}"
        self._attempt = 0

    def read(self, event: RunEvent) -> Iterator[ChoiceEvent]:
        """Yield the events that follow from an event of the run."""
        match event:
            case TextDelta(answer=True) if event.step not in self._skipped:
                yield from self._add_text(event)
            case TextDelta() if self._steps:
                yield from self._build.add_step_text(event.step, event.reasoning + event.text)
            case StepEvent(record=step) if self._steps and step.kind != "join":
                if step.step == self._output and step.tries > 1:
                    self._skipped.add(step.step)
                if not event.answer or step.step in self._skipped:
                    yield from self._build.add_step(step)
            case ApprovalRequested(question=question):
                yield QuestionAsked(question)
            case RunEnded(answer=answer):
                yield from self._build.end(answer)
            case _:
                pass

    def _add_text(self, event: TextDelta) -> Iterator[ChoiceEvent]:
        is_turn = not self._build.typed and event.step != self._output
        if event.attempt != self._attempt and (is_turn or not self._build.received):
            self._attempt = event.attempt
            yield from self._build.begin_turn() if is_turn else ()
        if event.attempt == self._attempt:
            yield from self._build.add_text(event.text, event.reasoning)


async def stream_choice(run: ServedRun, raw: bool, follow: Follow) -> AsyncGenerator[ChoiceEvent, None]:
    """Yield the events of a run; those of its steps if the client wants them.

    Closing the iterator cancels the run, unless `follow` is set: `from_start` yields all events, `from_now` the further
    ones.
    """
    running = (step.step for step in run.handle.steps if step.state == "running")
    reader = RunReader(run, raw, set(running if follow == "from_now" else ()))
    async for event in run.handle.follow() if follow else run.handle.news(None if run.steps else _WITHOUT_STEPS):
        for made in reader.read(event):
            yield made


async def stream_choices(
    runs: Sequence[ServedRun], raw: bool = False, follow: Follow = ""
) -> AsyncGenerator[tuple[int, ChoiceEvent], None]:
    """Yield the events of several runs as they come, each with the position of its run."""
    if len(runs) == 1:
        async for event in stream_choice(runs[0], raw, follow):
            yield 0, event
        return
    streams = [stream_choice(run, raw, follow) for run in runs]
    waiting = {asyncio.ensure_future(anext(stream)): place for place, stream in enumerate(streams)}
    try:
        while waiting:  # runs keep the client's pace
            for arrived in (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]:
                place = waiting.pop(arrived)
                with contextlib.suppress(StopAsyncIteration):
                    yield place, arrived.result()
                    waiting[asyncio.ensure_future(anext(streams[place]))] = place
    finally:
        for awaited in waiting:
            awaited.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


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
