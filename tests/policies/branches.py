"""Branches and tasks for tests of merges: made by hand, no machine."""

from __future__ import annotations

from pydantic import JsonValue

from plait.core.result import Failure, Result, Signals, Usage
from plait.core.states import State
from plait.core.task import Style, Task
from plait.core.values import as_text
from plait.core.view import Branch


def branch(name: str, value: JsonValue, logprob: float | None = None) -> Branch:
    """A branch that is done."""
    return Branch(name, f"r:{name}", State.DONE, Result(value=value, logprob=logprob), None, 5)


def ended(name: str, state: State) -> Branch:
    """A branch without a value."""
    failure = Failure(kind="WorkerError", message="no") if state is State.FAILED else None
    return Branch(name, f"r:{name}", state, None, failure, 0)


def branches(*values: JsonValue) -> list[Branch]:
    """Branches b1, b2, … that are done with the values."""
    return [branch(f"b{i}", value) for i, value in enumerate(values, 1)]


class Letters(Task):
    """The answer is the last word; `?` is none. Capitals are right, small letters wrong, digits cannot be told."""

    def render(self, style: Style = "serial", width: int = 8) -> str:
        return self.text

    def extract(self, text: str) -> JsonValue:
        word = text.split()[-1] if text.split() else "?"
        return None if word == "?" else word

    def key(self, answer: JsonValue) -> str:
        return as_text(answer).strip("!")

    def verify(self, answer: JsonValue) -> bool | None:
        text = as_text(answer)
        return None if text.isdigit() else text.isupper()


LETTERS = Letters(text="")


def voter(
    name: str,
    answer: str,
    *,
    tokens: int = 100,
    finish: str = "stop",
    logprob: float | None = None,
    signals: Signals | None = None,
) -> Branch:
    """A branch that is done, with its length and the model's confidence."""
    result = Result.model_validate(
        {"value": answer, "usage": Usage(completion=tokens), "finish": finish, "logprob": logprob, "signals": signals}
    )
    return Branch(name, f"r:{name}", State.DONE, result, None, tokens)


def confident(value: float, **more: float) -> Signals:
    """Signals all of whose confidences are one value."""
    given = {"confidence": value, "tail": value, "bottom": value, "lowest": value, "entropy": 1.0, **more}
    return Signals.model_validate({"k": 20, "window": 8, **given})
