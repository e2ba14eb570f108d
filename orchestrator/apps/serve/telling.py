"""A run's news as a client hears of them: text of the answer, steps that begin and end, their text, and the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from ...core.plan import Think
from ...core.record import StepRecord
from ...core.result import Usage
from ...core.values import as_text
from ...runtime.client.answer import Answer, AnswerNews, StepNews, TextNews
from ...runtime.client.handle import Handle
from .errors import ApiError, of_failure

__all__ = [
    "Ended",
    "Said",
    "StepBegan",
    "StepEnded",
    "StepSaid",
    "Told",
    "chat_usage",
    "gave_nothing",
    "step_of",
    "tell",
]


@dataclass(frozen=True, slots=True)
class Said:
    """More text of the answer."""

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
class Ended:
    """The run is over. Always the last."""

    answer: Answer
    again: bool
    """Whether what was told of the answer's text is not how it begins: a worker was lost, and wrote something else the
    second time."""

    @property
    def text(self) -> str:
        """The text that a client gets."""
        return text_of(self.answer)

    def check(self) -> None:
        """Raise `ApiError` for a run that ended without a value, or whose text was begun anew."""
        gave_nothing(self.answer)
        if self.again:
            message = "the worker was lost while it answered, and the answer was begun anew: send the request again"
            raise ApiError(503, message, code="answer_begun_anew", retry=True)


Told = Said | StepBegan | StepSaid | StepEnded | Ended


async def tell(handle: Handle, steps: bool) -> AsyncGenerator[Told, None]:
    """Yield what happens in a run, the end last; with `steps` also of its branches.

    The answer's text is told while it is written where the plan's output is one call of the model; else in one piece.
    A call that is tried again is not told further: the rest comes with the end.
    """
    answers, told = _answering(handle), ""
    open_steps: set[str] = set()
    async for news in handle.news(None if steps else ("text", "answer")):
        match news:
            case TextNews() if news.step == answers and not news.text:
                pass
            case TextNews() if news.step == answers:
                told += news.text
                yield Said(news.text)
            case TextNews() if steps and news.step in open_steps:
                yield StepSaid(news.step, news.text)
            case StepNews(record=step) if step.kind != "join":
                if step.step == answers and step.tries > 1:
                    answers = ""
                if step.step != answers and step.state == "running" and step.step not in open_steps:
                    open_steps.add(step.step)
                    yield StepBegan(step)
                if step.ended and step.step in open_steps:
                    open_steps.discard(step.step)
                    yield StepEnded(step)
            case AnswerNews(answer=answer):
                whole = text_of(answer)
                again = not whole.startswith(told)
                if not again and len(whole) > len(told):
                    yield Said(whole[len(told) :])
                yield Ended(answer, again)
            case _:
                pass


def gave_nothing(answer: Answer) -> None:
    """Raise `ApiError` for a run that ended without a value."""
    if answer.value is None and answer.status != "partial":
        if answer.failure is not None:
            raise of_failure(answer.failure)
        raise ApiError(500, f"the run was {answer.status}: {answer.why or 'it has no value'}", retry=False)


def was_cut(answer: Answer) -> bool:
    """Return whether a limit has cut the answer."""
    return answer.finish == "length" or answer.status == "partial" or answer.value is None


def text_of(answer: Answer) -> str:
    """Return the text that a client gets."""
    return "" if answer.value is None else as_text(answer.value)


def _answering(handle: Handle) -> str:
    """Return the id of the step whose text is the answer's from its first character on; empty if none is."""
    for step in handle.plan.steps:
        if step.name == handle.plan.output and isinstance(step.op, Think) and not step.expands and not step.op.after:
            return f"{handle.run}:{step.name}"
    return ""


def step_of(step: StepRecord) -> dict[str, Any]:
    """Return what clients are told of a step."""
    return {
        "id": step.step,
        "name": step.path,
        "kind": step.kind,
        "state": step.state,
        "label": step.label,
        "worker": step.worker,
        "tokens": step.tokens,
        "reason": step.reason if step.state in ("failed", "cancelled") else "",
    }


def written(step: StepRecord) -> str:
    """Return what a step has written."""
    return step.text if step.value is None else as_text(step.value)


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a run in the form of chat completions; `cancelled_tokens` is ours."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "cancelled_tokens": usage.cancelled,
        },
    }
