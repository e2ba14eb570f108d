"""`POST /agui`: a run as events of the AG-UI protocol, for the frontends that speak it.

Each branch is a reasoning message with the id of its step, the answer a text message. Functions of the frontend are
called at the end of a run, and the next run continues from there. A question is an interrupt: the run waits, and the
next request with its answer (`resume`) follows it again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic.alias_generators import to_camel
from starlette.requests import Request as HttpRequest

from plait.core.record import StepRecord
from plait.core.request import Request
from plait.core.tools.context import Question
from plait.runtime.client.answer import Answer

from . import stream_events as ev
from .bodies import MAX_MESSAGES, MAX_TOOLS, BodyTable, PlaitField, ServedStrategy, body_with
from .client_tools import ToolBody
from .conversations import read_frontend_message
from .dialect import StreamWriter, describe_answer, write_stream
from .errors import ApiError, not_found
from .http import EventStream, apart, read, sse
from .service import Service
from .sessions import normalise_session
from .stream_events import text_of_step
from .tenants import ServedRun, User

_WIRE = ConfigDict(extra="allow", frozen=True, alias_generator=to_camel, populate_by_name=True)
_OUTSIDE = ("reasoning", "activity")
"""Roles of messages that do not belong to the conversation."""


class FrontendContext(BaseModel):
    """Context that the frontend gives the model in addition to the conversation."""

    model_config: ClassVar[ConfigDict] = _WIRE
    description: str = ""
    value: str


class Resume(BaseModel):
    """The answer to an interrupt."""

    model_config: ClassVar[ConfigDict] = _WIRE
    interrupt_id: str = Field(max_length=400)
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class AguiBody(body_with("protocol_version parent_run_id state")):
    """The body: AG-UI's `RunAgentInput`. Entries of `forwardedProps` are read like fields of a chat completion:
    `model`, `temperature`, `plait`."""

    model_config: ClassVar[ConfigDict] = _WIRE
    table = BodyTable("agui", {"max_tokens": "max_tokens"})
    model: str = Field(default="", max_length=2000)
    thread_id: str = Field(max_length=200)
    run_id: str = Field(max_length=200)
    messages: list[dict[str, Any]] = Field(max_length=MAX_MESSAGES)
    tools: Annotated[list[ToolBody] | None, Field(max_length=MAX_TOOLS)] = None
    context: Annotated[list[FrontendContext] | None, Field(max_length=MAX_MESSAGES)] = None
    resume: Annotated[list[Resume] | None, Field(max_length=MAX_MESSAGES)] = None
    plait: PlaitField = PlaitField(steps=True)
    max_tokens: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _forwarded(cls, given: Any) -> Any:
        props = given.get("forwardedProps") if isinstance(given, dict) else None
        if not isinstance(props, dict):
            return given
        return {**props, **{name: value for name, value in given.items() if name != "forwardedProps"}}

    def request(self, strategy: ServedStrategy) -> Request:
        """Return the request for the planner and the model that the body's model name selects. Raises `ApiError`."""
        return super().request(strategy).updated({"session": normalise_session(self.thread_id)})

    def read_conversation(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Return the messages, the context of the frontend first. Raises `ApiError`."""
        return list(self._conversation()), ""

    def _conversation(self) -> Iterator[dict[str, Any]]:
        if self.context:
            lines = [f"{item.description}: {item.value}" if item.description else item.value for item in self.context]
            yield {"role": "system", "content": "\n".join(lines)}
        for place, message in enumerate(self.messages):
            if message.get("role") not in _OUTSIDE:
                yield read_frontend_message(message, f"messages[{place}]")


class AguiApi:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self, request: HttpRequest, user: User) -> EventStream:
        """Answer `POST /agui`."""
        if importlib.util.find_spec("ag_ui") is None:
            raise ApiError(501, "AG-UI needs one more package here: pip install 'plait[agui]'", code="not_installed",
                           retry=False)  # fmt: skip
        body = await read(request, AguiBody, self._service.settings)
        body.check()
        live = self._resumed(body, user) if body.resume else await self._started(body, user)
        request.scope["plait.run"], request.scope["plait.ignored"] = live.handle.run, live.ignored
        answered = {answer.interrupt_id for answer in body.resume or ()}
        writer = AguiWriter(live, body.thread_id, body.run_id, answered)
        events = ev.stream_choices([live], follow="from_now" if body.resume else "from_start")

        def give_up() -> None:
            if not writer.has_ended:
                live.handle.cancel(cause="client-gone")

        return EventStream(write_stream(writer, events), give_up)

    async def _started(self, body: AguiBody, user: User) -> ServedRun:
        service = self._service
        await service.count_request(user)
        asked = await apart(body.is_long, body.request, service.strategy(body.model, user))
        live = await service.submit(asked, body, user, watch=True)
        service.run_in_background(ev.stream_model_calls(live.handle), "the news of a run")
        return live

    def _resumed(self, body: AguiBody, user: User) -> ServedRun:
        """Answer what a run has asked, and return it. Raises `ApiError` where it is not this tenant's, or over."""
        answers = body.resume or []
        run = answers[0].interrupt_id.partition(":")[0]
        live = self._service.live.get(run)
        if live is None or live.user is not user or any(not answer.interrupt_id.startswith(run) for answer in answers):
            raise not_found(f"no run waits for {answers[0].interrupt_id!r}", "resume", "interrupt_not_found")
        for answer in answers:
            if answer.status == "cancelled":
                live.handle.cancel("its question was not answered")
            else:
                live.handle.answer(answer.interrupt_id, answer.payload, user.answerer)
        return live


class AguiWriter(StreamWriter):
    """Makes the events of one run, as objects of the package `ag_ui`."""

    def __init__(self, run: ServedRun, thread_id: str, run_id: str, answered: Collection[str] = ()) -> None:
        from ag_ui.core import events  # pyright: ignore[reportMissingImports]

        self._ag: Any = events
        self._run, self._text = run, run.handle.run
        """The run, and the id of its text message."""
        self._ids: dict[str, Any] = {"thread_id": thread_id, "run_id": run_id}
        self._steps: dict[str, str] = {}
        """The names of running steps, by id."""
        self._messages: list[str] = []
        """Ids of open messages."""
        self._answered = answered
        """Ids of questions whose answer the run may not have read yet."""

    def begin(self) -> Iterator[Any]:
        """Yield the beginning of the run."""
        yield self._event("RunStarted", **self._ids, metadata={"plait": {"run": self._run.handle.run}})

    def add(self, place: int, event: ev.ChoiceEvent) -> Iterator[Any]:
        """Yield the records of an event."""
        match event:
            case ev.PartBegan(ev.StepPart(step=step)):
                self._steps[step.step] = step.path
                yield self._event("StepStarted", step_name=step.path)
                if step.kind == "call":
                    name = step.label or step.name
                    yield self._event("ToolCallStart", tool_call_id=step.step, tool_call_name=name)
            case ev.PartDelta(ev.AnswerText() | ev.ReasoningPart() | ev.StepPart() as part, text):
                yield from self._grow(part, text)
            case ev.PartEnded(ev.StepPart(step=step)):
                yield from self._close(step.step)
                yield from self._end_step(step)
            case ev.PartEnded(ev.AnswerText() | ev.ReasoningPart() as part):
                yield from self._close(self._message_of(part))
            case ev.PartBegan(ev.CallPart(call=call)):
                yield from self._close_all()
                yield self._event("ToolCallStart", tool_call_id=call.id, tool_call_name=call.function.name,
                                  parent_message_id=self._run.handle.run)  # fmt: skip
            case ev.PartDelta(ev.CallPart(call=call), text) if text:
                yield self._event("ToolCallArgs", tool_call_id=call.id, delta=text)
            case ev.PartEnded(ev.CallPart(call=call)):
                yield self._event("ToolCallEnd", tool_call_id=call.id)
            case ev.QuestionAsked(question) if question.id not in self._answered:
                self.has_ended = True
                yield from self._close_all()
                asked = [one for one in self._run.handle.questions if one.id not in self._answered]
                interrupts = [_interrupt(self._ag, one) for one in asked]
                yield self._finish(outcome=self._ag.RunFinishedInterruptOutcome(interrupts=interrupts))
            case ev.ChoiceEnded(answer) | ev.ChoiceFailed(answer):
                yield from self._close_all()
                yield self._end_run(event, answer)
            case _:
                pass

    def _grow(self, part: ev.AnswerPart, text: str) -> Iterator[Any]:
        message = self._message_of(part)
        is_text = isinstance(part, ev.AnswerText)
        kind, role = ("TextMessage", "assistant") if is_text else ("ReasoningMessage", "reasoning")
        if message not in self._messages:
            self._messages.append(message)
            yield self._event(f"{kind}Start", message_id=message, role=role)
        if text:
            yield self._event(f"{kind}Content", message_id=message, delta=text)

    def _message_of(self, part: ev.AnswerPart) -> str:
        if not isinstance(part, ev.AnswerText):
            return part.id or f"{self._run.handle.run}:thoughts"
        self._text = f"{self._run.handle.run}:{part.index}" if part.follows else self._run.handle.run
        return self._text

    def _close(self, message: str) -> Iterator[Any]:
        """End a message, if it is open."""
        if message in self._messages:
            self._messages.remove(message)
            kind = "TextMessage" if message == self._text else "ReasoningMessage"
            yield self._event(f"{kind}End", message_id=message)

    def _close_all(self) -> Iterator[Any]:
        """End all open messages and steps."""
        for message in sorted(self._messages, key=lambda message: message == self._text):
            yield from self._close(message)
        for name in self._steps.values():
            yield self._event("StepFinished", step_name=name)
        self._steps.clear()

    def _end_step(self, step: StepRecord) -> Iterator[Any]:
        if step.kind == "call":
            result = text_of_step(step) if step.state == "done" else f"{step.state}: {step.reason}"
            call = {"tool_call_id": step.step}
            yield self._event("ToolCallEnd", **call)
            yield self._event("ToolCallResult", **call, message_id=f"{step.step}:result", content=result)
        yield self._event("StepFinished", step_name=self._steps.pop(step.step, step.path))

    def _end_run(self, event: ev.ChoiceEnded | ev.ChoiceFailed, answer: Answer) -> Any:
        used = answer.usage
        usage = [
            self._ag.TokenUsage(
                input_tokens=used.prompt,
                output_tokens=used.completion,
                cached_input_tokens=used.cached,
                reasoning_tokens=used.thoughts,
            )
        ]
        if answer.status == "cancelled":
            return self._finish(outcome=self._ag.RunFinishedCancelledOutcome(), usage=usage)
        if isinstance(event, ev.ChoiceFailed):
            return self._event("RunError", message=event.error.message, code=event.error.code, usage=usage)
        pending = [call.id for call in answer.message.tool_calls] or None
        outcome = self._ag.RunFinishedSuccessOutcome(pending_tool_call_ids=pending)
        about = {"plait": describe_answer(answer, self._run.steps)}
        return self._finish(outcome=outcome, usage=usage, metadata=about)

    def _finish(self, **fields: Any) -> Any:
        return self._event("RunFinished", **self._ids, **fields)

    def _event(self, kind: str, **fields: Any) -> Any:
        return getattr(self._ag, f"{kind}Event")(**fields)

    def encode(self, record: Any) -> bytes:
        """Return a record as a server-sent event."""
        return sse(record.model_dump(mode="json", by_alias=True))


def _interrupt(ag: Any, question: Question) -> Any:
    reason = "input_required" if question.call is None else "approval_required"
    schema = {"enum": list(question.choices)} if question.choices else None
    return ag.Interrupt(
        id=question.id, reason=reason, message=question.text, tool_call_id=question.step, response_schema=schema
    )
