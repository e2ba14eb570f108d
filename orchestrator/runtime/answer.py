"""What a user gets back, and the news of a run on the way there. Plain data; knows no machine."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from ..core.errors import RunFailed
from ..core.events import Status
from ..core.ir import Failure, Frozen, Kind, Usage
from .report import Report


class Answer(Frozen):
    """The end of a run. A run that failed is an answer too; only `unwrap` raises."""

    run: str
    """Id of the run."""
    status: Status
    """`done`; `partial`: a budget or deadline cut something; `failed`; `cancelled`: the user gave it up."""
    answer: JsonValue = None
    """What the task reads out of the output's text: the answer that is claimed, or `None`."""
    verified: bool | None = None
    """Whether the task can tell that the answer is right; `None` if it cannot tell."""
    value: JsonValue = None
    """The output step's value, as it is."""
    why: str = ""
    """How the answer was chosen, if it was chosen among several."""
    failure: Failure | None = None
    """Why there is no answer."""
    partial: dict[str, JsonValue] = {}
    """Values of the steps that were done, by step id, if the run has no value of its own."""
    report: Report = Report()

    @property
    def usage(self) -> Usage:
        """Tokens of all attempts: prompt, cached, completion, cancelled."""
        return self.report.usage

    @property
    def text(self) -> str:
        """The output as text."""
        return self.value if isinstance(self.value, str) else "" if self.value is None else str(self.value)

    @property
    def critical_path_tokens(self) -> int:
        """Most generated tokens along any chain of steps that the answer was made from."""
        return self.report.critical_path_tokens

    @property
    def total_tokens(self) -> int:
        """Generated tokens of all attempts, cancelled ones included."""
        return self.report.usage.completion

    @property
    def seconds(self) -> float:
        """Wall-clock of the run."""
        return self.report.seconds

    def unwrap(self) -> JsonValue:
        """Return the answer (the output's value where the task finds none in it); raise `RunFailed` if there is
        none."""
        if self.failure is not None and self.value is None:
            raise RunFailed(self.failure)
        return self.value if self.answer is None else self.answer

    def summary(self) -> dict[str, JsonValue]:
        """Return the fields that `plait run --json` prints."""
        usage = self.usage
        return {
            "answer": self.answer,
            "status": self.status,
            "verified": self.verified,
            "usage": {
                "prompt": usage.prompt,
                "cached": usage.cached,
                "completion": usage.completion,
                "cancelled": usage.cancelled,
            },
            "critical_path_tokens": self.critical_path_tokens,
            "total_tokens": self.total_tokens,
            "seconds": round(self.seconds, 4),
            "run": self.run,
            "why": self.why,
            "error": None if self.failure is None else f"{self.failure.kind}: {self.failure.message}",
            "partial": self.partial,
        }


class StepNews(Frozen):
    """A step entered the plan or moved."""

    kind: Literal["step"] = "step"
    at: float
    """Seconds after the run began."""
    step: str
    name: str
    owner: str | None
    """Id of the step that expanded into it."""
    op: Kind
    label: str
    state: str
    reason: str = ""
    tokens: int = 0
    """Generated so far."""
    value: JsonValue = None
    """Its own value, once it has one."""


class TextNews(Frozen):
    """A step generated more text."""

    kind: Literal["text"] = "text"
    at: float
    step: str
    text: str
    tokens: int


class AnswerNews(Frozen):
    """The run is over. Always the last."""

    kind: Literal["answer"] = "answer"
    at: float
    answer: Answer


News = StepNews | TextNews | AnswerNews
