"""A run as a stream of AG-UI events (`pip install ag-ui-protocol`), for frontends that speak that protocol.

Each branch is a reasoning message of its own: its `message_id` is the step's id, so that a frontend can show branches
side by side. The answer is a text message with the id of the run. A question is an interrupt.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import AsyncIterator

from ag_ui.core import events as ag

from ...core.states import State
from ...core.tools.context import Question
from ...core.values import as_text
from ...runtime.client.answer import Answer, ApprovalRequested, RunEnded, StepEvent, TextDelta
from ...runtime.client.handle import Handle

__all__ = ["agui_events"]


async def agui_events(handle: Handle, thread_id: str) -> AsyncIterator[ag.BaseEvent]:
    """Yield the events of a run that was submitted with `watch=True`. After an interrupt the run waits: answer with
    `Handle.answer(interrupt.id, …)` and follow it again.
    """
    yield ag.RunStartedEvent(thread_id=thread_id, run_id=handle.run)
    running: dict[str, str] = {}
    speaking: set[str] = set()
    async for news in handle.follow():
        match news:
            case StepEvent(record=record):
                step, ended = record.step, State(record.state).ended
                if record.state == "running" and step not in running:
                    running[step] = record.name
                    yield ag.StepStartedEvent(step_name=record.name)
                    if record.kind == "call":
                        yield ag.ToolCallStartEvent(tool_call_id=step, tool_call_name=record.label or record.name)
                # A step that was given up before it began was never announced.
                elif ended and step in running:
                    if step in speaking:
                        speaking.discard(step)
                        yield ag.ReasoningMessageEndEvent(message_id=step)
                    if record.kind == "call":
                        yield ag.ToolCallEndEvent(tool_call_id=step)
                        outcome = (
                            as_text(record.output) if record.state == "done" else f"{record.state}: {record.reason}"
                        )
                        yield ag.ToolCallResultEvent(message_id=f"{step}:result", tool_call_id=step, content=outcome)
                    yield ag.StepFinishedEvent(step_name=running.pop(step))
            case TextDelta(step=step, text=text) if text:
                if step not in speaking:
                    speaking.add(step)
                    yield ag.ReasoningMessageStartEvent(message_id=step, role="reasoning")
                yield ag.ReasoningMessageContentEvent(message_id=step, delta=text)
            case ApprovalRequested(question=question):
                yield _interrupted(handle, thread_id, question)
                return
            case RunEnded(answer=answer):
                for step in sorted(speaking):
                    yield ag.ReasoningMessageEndEvent(message_id=step)
                for event in _ended(answer, thread_id):
                    yield event
            case _:
                pass


def _interrupted(handle: Handle, thread_id: str, question: Question) -> ag.BaseEvent:
    reason = "input_required" if question.call is None else "approval_required"
    interrupt = ag.Interrupt(id=question.id, reason=reason, message=question.text)
    outcome = ag.RunFinishedInterruptOutcome(interrupts=[interrupt])
    return ag.RunFinishedEvent(thread_id=thread_id, run_id=handle.run, outcome=outcome)


def _ended(answer: Answer, thread_id: str) -> list[ag.BaseEvent]:
    usage = [ag.TokenUsage(input_tokens=answer.usage.prompt, output_tokens=answer.usage.completion)]
    if answer.status == "failed":
        failure = answer.failure
        message = answer.why if failure is None else failure.message
        return [ag.RunErrorEvent(message=message, code=None if failure is None else failure.kind, usage=usage)]
    events: list[ag.BaseEvent] = []
    if answer.answer is not None:
        events = [
            ag.TextMessageStartEvent(message_id=answer.run, role="assistant"),
            ag.TextMessageContentEvent(message_id=answer.run, delta=as_text(answer.answer) or " "),
            ag.TextMessageEndEvent(message_id=answer.run),
        ]
    cancelled = answer.status == "cancelled"
    outcome = ag.RunFinishedCancelledOutcome() if cancelled else ag.RunFinishedSuccessOutcome()
    return [*events, ag.RunFinishedEvent(thread_id=thread_id, run_id=answer.run, outcome=outcome, usage=usage)]
