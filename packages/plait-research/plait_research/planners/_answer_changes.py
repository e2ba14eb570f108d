"""What a round of a team changed: answers that became right, or wrong, or other ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from plait.core.task import Task


@dataclass(frozen=True, slots=True)
class AnswerChanges:
    """What one round changed, agent by agent. Right and wrong are counted where the task can tell."""

    round: int
    changed: int
    to_right: int
    to_wrong: int

    @classmethod
    def of(cls, round_: int, before: Sequence[JsonValue], after: Sequence[JsonValue], task: Task) -> AnswerChanges:
        """Compare the answers of two rounds."""
        changed = to_right = to_wrong = 0
        for old, new in zip(before, after, strict=True):
            if answer_key(old, task) == answer_key(new, task):
                continue
            changed += 1
            was, is_ = is_right(old, task), is_right(new, task)
            to_right += is_ is True and was is not True
            to_wrong += was is True and is_ is not True
        return cls(round_, changed, to_right, to_wrong)

    def __str__(self) -> str:
        return f"round {self.round}: {self.changed} changed, {self.to_right} to right, {self.to_wrong} to wrong"


def answer_key(answer: JsonValue, task: Task) -> str | None:
    """Return the form in which equal answers are equal; `None` for no answer."""
    return None if answer is None else task.key(answer)


def is_right(answer: JsonValue, task: Task) -> bool | None:
    """Whether an answer is right, where the task can tell."""
    return None if answer is None else task.verify(answer)


def have_agreed(answers: Sequence[JsonValue], task: Task) -> bool:
    """Whether all agents have the same answer."""
    keys = [answer_key(answer, task) for answer in answers]
    return keys[0] is not None and all(other == keys[0] for other in keys)


def format_changes(flips: Sequence[AnswerChanges]) -> str:
    """Return the flips of all rounds in one line."""
    return "; ".join(map(str, flips)) or "one round"
