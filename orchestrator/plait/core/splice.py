"""The text in which a parent reads its threads' results: a dialect declares it, and the merge `splice` writes it."""

from __future__ import annotations

from pydantic import field_validator

from .regex import expression
from .values import Frozen

__all__ = ["SpliceBlock"]


class SpliceBlock(Frozen):
    """A block: `head`, the entries with `separator` between them, and `tail`.

    Templates may hold `{item}`, `{answer}`, `{text}`, `{number}` (from 1) and `{index}` (from 0). An entry is written
    from `hit` if its thread reached the goal, else from `none`.
    """

    head: str = ""
    """Text before the first entry."""
    hit: str = "{text}"
    """Entry of a thread that reached the goal."""
    none: str = ""
    """Entry of any other thread: it found nothing, failed, was stopped, or its claim proved wrong."""
    separator: str = ""
    """Text between two entries."""
    tail: str = ""
    """Text after the last entry."""
    goal: str | None = None
    """Regular expression that matches in the text of a thread that reached the goal; its group `answer` is the result.
    `None`: every thread that ends in a value counts as successful, and all are waited for."""
    check: bool = True
    """Whether the task verifies each claim; a thread with a wrong claim found nothing. A claim that the task cannot
    judge stands. Needs `goal`."""
    words: bool = False
    """Whether the text is words with single spaces between them, as a word-level tokenizer reads it."""
    end: str = ""
    """The end of a thread's text if the thread ended by itself."""
    close: str = ""
    """Text that closes a thread's text that does not end with `end`."""
    carry: bool = False
    """Whether the value is a list of pieces: text, and the threads' outputs with their token ids (`{"ids": […], "text":
    …}`), which the parent then reads exactly as they were generated. Not with `words` or `{answer}`."""
    claim_from: str = ""
    """With `claim_item`: only the part of a thread's `answer` after the last occurrence of this text counts."""
    claim_item: str = ""
    """Regular expression of one step of a thread's claim; the task reads the steps joined by ` ; `. Empty: the task
    reads the `hit` entry."""

    @field_validator("goal", "claim_item")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value:
            expression(value)
        return value

    def join_claim(self, text: str) -> str:
        """Return the steps of a thread's claim in `text`, in the form that a task reads; empty without any."""
        start = text.rfind(self.claim_from) if self.claim_from else 0
        return " ; ".join(step.text for step in expression(self.claim_item).finditer(text[max(0, start) :]))
