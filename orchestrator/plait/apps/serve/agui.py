"""`POST /agui`: a run as events of the AG-UI protocol, for the frontends that speak it.

Each branch is a reasoning message with the id of its step, the answer a text message. Functions of the frontend are
called at the end of a run, which the next one goes on from. A question is an interrupt: the run waits, and the next
request with its answer (`resume`) follows it again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic.alias_generators import to_camel
from starlette.requests import Request as HttpRequest

from ...core.request import Request
from ...core.tools.context import Question
from ...runtime.client.answer import Answer
from .bodies import MESSAGES, TOOLS, Body, PlaitField, ServedStrategy
from .errors import ApiError, not_found, unsupported
from .http import EventStream, apart, read, sse
from .offered import ClientTools, FunctionTool
from .service import Service, said_of
from .telling import (
    AnswerText,
    Asked,
    Ended,
    StepBegan,
    StepEnded,
    StepSaid,
    Thought,
    Told,
    read_through,
    tell,
    written,
)
from .tenants import ServedRun, User

__all__ = ["AguiApi", "AguiBody"]

_WIRE = ConfigDict(extra="allow", frozen=True, alias_generator=to_camel, populate_by_name=True)
_OUTSIDE = ("reasoning", "activity")
"""Messages that are no part of the conversation."""


class FrontendContext(BaseModel):
    """Something that the model is told beside the conversation."""

    model_config: ClassVar[ConfigDict] = _WIRE
    description: str = ""
    value: str


class Resume(BaseModel):
    """The answer to an interrupt."""

    model_config: ClassVar[ConfigDict] = _WIRE
    interrupt_id: str = Field(max_length=400)
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class AguiBody(Body):
    """The body: AG-UI's `RunAgentInput`. What stands in `forwardedProps` is read as fields of a chat completion are:
    `model`, `temperature`, `plait`."""

    model_config: ClassVar[ConfigDict] = _WIRE
    endpoint = "agui"
    model: str = Field(default="", max_length=2000)
    thread_id: str = Field(max_length=200)
    run_id: str = Field(max_length=200)
    messages: list[dict[str, Any]] = Field(max_length=MESSAGES)
    tools: Annotated[list[FunctionTool] | None, Field(max_length=TOOLS)] = None
    context: Annotated[list[FrontendContext] | None, Field(max_length=MESSAGES)] = None
    resume: Annotated[list[Resume] | None, Field(max_length=MESSAGES)] = None
    plait: PlaitField = PlaitField(steps=True)
    max_tokens: int | None = Field(default=None, ge=1)
    protocol_version: JsonValue = None
    parent_run_id: JsonValue = None
    state: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _forwarded(cls, given: Any) -> Any:
        props = given.get("forwardedProps") if isinstance(given, dict) else None
        if not isinstance(props, dict):
            return given
        return {**props, **{name: value for name, value in given.items() if name != "forwardedProps"}}

    @property
    def client_tools(self) -> ClientTools:
        """The functions that it offers."""
        return ClientTools(tuple(self.tools or ()))

    def check(self) -> None:
        """Raise `ApiError` for what cannot be honoured."""
        self.client_tools.check(self.tool_choice)

    def request(self, strategy: ServedStrategy) -> Request:
        """Return what it asks for, of a planner and a model that the name of its model stands for."""
        generation = {"max_tokens": self.max_tokens}
        asked = self._request(list(self._conversation()), strategy, self.client_tools, generation, None)
        return asked.updated({"session": self.thread_id})

    def _conversation(self) -> Iterator[dict[str, Any]]:
        if self.context:
            lines = [f"{item.description}: {item.value}" if item.description else item.value for item in self.context]
            yield {"role": "system", "content": "\n".join(lines)}
        for place, message in enumerate(self.messages):
            if message.get("role") not in _OUTSIDE:
                yield _message(message, f"messages[{place}]")


def _message(message: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Return a message as chat completions have it; what it lacks is said where messages are read."""
    kept = {name: message[name] for name in ("role", "name", "content") if message.get(name) is not None}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = [_part(part, f"{param}.content[{number}]") for number, part in enumerate(content)]
    if calls := message.get("toolCalls"):
        kept["tool_calls"] = [
            {name: call[name] for name in ("id", "type", "function") if name in call}
            if isinstance(call, dict)
            else call
            for call in (calls if isinstance(calls, list) else [calls])
        ]
    if kept.get("role") == "tool":
        kept["tool_call_id"] = message.get("toolCallId")
        if error := message.get("error"):
            kept["content"] = "\n".join(filter(None, (f"Error: {error}", str(kept.get("content") or ""))))
    return kept


def _part(part: Any, param: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    source = part.get("source") if kind == "image" else None
    if kind == "text":
        return {"type": "text", "text": part.get("text")}
    if isinstance(source, dict) and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("value")}}
    if isinstance(source, dict) and source.get("type") == "data":
        return {
            "type": "image_url",
            "image_url": {"url": f"data:{source.get('mimeType')};base64,{source.get('value')}"},
        }
    raise unsupported(param, f"parts of type {kind!r} are not taken here: give text, or an image by url or data")


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
        events = AguiEvents(live, body)

        def give_up() -> None:
            if not events.interrupted:
                live.handle.cancel(cause="client-gone")

        return EventStream(events.told(), give_up)

    async def _started(self, body: AguiBody, user: User) -> ServedRun:
        service = self._service
        await service.counted(user)
        asked = await apart(body.long, body.request, service.strategy(body.model, user))
        live = await service.submit(asked, body, user, watch=True)
        service.behind(read_through(live.handle), "the news of a run")
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


class AguiEvents:
    """The events of one request."""

    def __init__(self, live: ServedRun, body: AguiBody) -> None:
        self._live, self._body = live, body
        self._steps: dict[str, str] = {}
        """The names of steps that run, by id."""
        self._speaking: list[str] = []
        """Ids of reasoning messages that are open."""
        self._text = False
        self._answered = {answer.interrupt_id for answer in body.resume or ()}
        self.interrupted = False
        """Whether it has ended in a question: the run goes on when that is answered."""

    async def told(self) -> AsyncGenerator[bytes, None]:
        """Yield them, as server-sent events."""
        from ag_ui.core import events as ag  # pyright: ignore[reportMissingImports]

        live = self._live
        ids: dict[str, Any] = {"thread_id": self._body.thread_id, "run_id": self._body.run_id}
        yield _sse(ag.RunStartedEvent(**ids, metadata={"plait": {"run": live.handle.run}}))
        async for news in tell(live.handle, live.steps, follow="on" if self._body.resume else "anew"):
            match news:
                case Asked(question) if question.id in self._answered:  # and its run has not read that yet
                    continue
                case Asked():
                    events = [*self._closed(ag), self._interrupt(ag, ids)]
                case Ended(answer=answer):
                    events = [*self._closed(ag), *self._ended(ag, ids, news, answer)]
                case _:
                    events = self._events(ag, news)
            for event in events:
                yield _sse(event)
            if self.interrupted:
                return

    def _events(self, ag: Any, news: Told) -> Iterator[Any]:
        match news:
            case AnswerText(text):
                yield from self._silent(ag)
                if not self._text:
                    self._text = True
                    yield ag.TextMessageStartEvent(message_id=self._live.handle.run, role="assistant")
                yield ag.TextMessageContentEvent(message_id=self._live.handle.run, delta=text)
            case Thought(text) if self._live.thoughts:
                yield from self._said(ag, f"{self._live.handle.run}:thoughts", text)
            case StepBegan(step):
                self._steps[step.step] = step.path
                yield ag.StepStartedEvent(step_name=step.path)
                if step.kind == "call":
                    yield ag.ToolCallStartEvent(tool_call_id=step.step, tool_call_name=step.label or step.name)
            case StepSaid(step, text):
                yield from self._said(ag, step, text)
            case StepEnded(step):
                yield from self._silent(ag, step.step)
                if step.kind == "call":
                    told = written(step) if step.state == "done" else f"{step.state}: {step.reason}"
                    yield ag.ToolCallEndEvent(tool_call_id=step.step)
                    yield ag.ToolCallResultEvent(message_id=f"{step.step}:result", tool_call_id=step.step, content=told)
                yield ag.StepFinishedEvent(step_name=self._steps.pop(step.step, step.path))
            case _:
                pass

    def _said(self, ag: Any, message: str, text: str) -> Iterator[Any]:
        if message not in self._speaking:
            self._speaking.append(message)
            yield ag.ReasoningMessageStartEvent(message_id=message, role="reasoning")
        if text:
            yield ag.ReasoningMessageContentEvent(message_id=message, delta=text)

    def _silent(self, ag: Any, message: str = "") -> Iterator[Any]:
        """End a reasoning message; by default that of the thoughts before the answer."""
        message = message or f"{self._live.handle.run}:thoughts"
        if message in self._speaking:
            self._speaking.remove(message)
            yield ag.ReasoningMessageEndEvent(message_id=message)

    def _closed(self, ag: Any) -> Iterator[Any]:
        """End all that is open."""
        for message in list(self._speaking):
            yield from self._silent(ag, message)
        if self._text:
            self._text = False
            yield ag.TextMessageEndEvent(message_id=self._live.handle.run)
        for name in self._steps.values():
            yield ag.StepFinishedEvent(step_name=name)
        self._steps.clear()

    def _interrupt(self, ag: Any, ids: Mapping[str, str]) -> Any:
        self.interrupted = True
        there = [question for question in self._live.handle.questions if question.id not in self._answered]
        asked = [_interrupt(ag, question) for question in there]
        return ag.RunFinishedEvent(**ids, outcome=ag.RunFinishedInterruptOutcome(interrupts=asked))

    def _ended(self, ag: Any, ids: Mapping[str, str], ended: Ended, answer: Answer) -> Iterator[Any]:
        """Yield what the end of a run is told as: its calls of the frontend's functions, and its outcome."""
        used = answer.usage
        usage = [
            ag.TokenUsage(
                input_tokens=used.prompt,
                output_tokens=used.completion,
                cached_input_tokens=used.cached,
                reasoning_tokens=used.thoughts,
            )
        ]
        if answer.status == "cancelled":
            yield ag.RunFinishedEvent(**ids, outcome=ag.RunFinishedCancelledOutcome(), usage=usage)
            return
        try:
            ended.check(self._live.must_call)
        except ApiError as error:
            yield ag.RunErrorEvent(message=error.message, code=error.code, usage=usage)
            return
        calls = answer.message.tool_calls
        for call in calls:
            yield ag.ToolCallStartEvent(
                tool_call_id=call.id, tool_call_name=call.function.name, parent_message_id=self._live.handle.run
            )
            yield ag.ToolCallArgsEvent(tool_call_id=call.id, delta=call.function.arguments)
            yield ag.ToolCallEndEvent(tool_call_id=call.id)
        outcome = ag.RunFinishedSuccessOutcome(pending_tool_call_ids=[call.id for call in calls] or None)
        about = {"plait": said_of(self._live, answer)}
        yield ag.RunFinishedEvent(**ids, outcome=outcome, usage=usage, metadata=about)


def _interrupt(ag: Any, question: Question) -> Any:
    reason = "input_required" if question.call is None else "approval_required"
    schema = {"enum": list(question.choices)} if question.choices else None
    return ag.Interrupt(
        id=question.id, reason=reason, message=question.text, tool_call_id=question.step, response_schema=schema
    )


def _sse(event: Any) -> bytes:
    return sse(event.model_dump(mode="json", by_alias=True))
