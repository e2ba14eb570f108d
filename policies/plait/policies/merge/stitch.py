"""Merge `stitch`: texts that were written side by side, as one text in the planned order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.declarations import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import strip_thoughts

__all__ = ["Stitch"]

_MARKS = frozenset(" \t\n*_#`\"'“”")
_REST = " \t\n*_`:–—-"
_GOES_ON = ",.:;)!?"
_FIELD = re.compile(r"\{reason\}")


class StitchPart(Frozen):
    """One part of the text."""

    branch: str
    """Name of the branch that wrote it."""
    head: str = ""
    """Before its text."""
    flows: bool = False
    """The head was the start of the model's turn: a text that continues in mid-sentence (a small letter, a comma) stays
    on the head's line."""
    echo: tuple[str, ...] = ()
    """Texts that a model may repeat at the start of the part, such as its heading. They are removed, whatever their
    case, spaces and emphasis."""
    missing: str | None = None
    """Text for a branch without any; `{reason}` becomes the reason. Without it the part is left out with its head."""


class Stitch(Merge):
    """`head`, the parts with `separator` between them, `tail`.

    A part is the branch's text without space around it and without a leading `<think>` block. One branch with nothing
    to be put around it keeps its value as it is. When no part is left the value is `null`.
    """

    parts: Annotated[tuple[StitchPart, ...], Free()] = Field(
        default=(), description="The parts in order. Empty: one for each branch, in the join's order."
    )
    head: FreeText = Field(default="", description="Text before the first part.")
    separator: FreeText = Field(default="\n\n", description="Between the branches' texts in the answer.")
    tail: FreeText = Field(default="", description="Text after the last part.")
    note: FreeText = Field(default="", description="Start of `why`: a planner's words for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="What a planner tells programs.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the text; `why` has the note, how many parts there are, and who is missing."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.parts or tuple(StitchPart(branch=branch.name) for branch in branches)
        # Nothing is to be put together: the value keeps its type, and its `why`.
        if len(entries) == 1 and entries[0] == StitchPart(branch=entries[0].branch) and not (self.head or self.tail):
            return self._single_part(by_name.get(entries[0].branch))
        parts: list[str] = []
        missing: list[str] = []
        for entry in entries:
            branch = by_name.get(entry.branch)
            text = _text(branch, entry)
            if text:
                parts.append(_with_heading(entry, text))
                continue
            # A part that is missing is named, so that what is built on this value does not take it for the whole.
            reason = _reason(branch)
            missing.append(f"{entry.branch} {reason}")
            if entry.missing is not None:
                parts.append(_FIELD.sub(lambda _, reason=reason: reason, entry.missing))
        why = f"{len(entries) - len(missing)} of {len(entries)} parts"
        if missing:
            shown = "; ".join(missing[:3]) + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")
            why += f"; missing: {shown}"
        value = self.head + self.separator.join(parts) + self.tail if parts else None
        return Verdict(value=value, why=f"{self.note}; {why}" if self.note else why, data=self.data)

    def _single_part(self, branch: Branch | None) -> Verdict:
        if branch is None or branch.result is None:
            problem = f"missing: {branch.name if branch else 'the only branch'} {_reason(branch)}"
            return Verdict(value=None, why=f"{self.note}; {problem}" if self.note else problem, data=self.data)
        why = "; ".join(reason for reason in (self.note, branch.result.why) if reason)
        data = branch.result.data if self.data is None else self.data
        return Verdict(value=branch.result.value, why=why, data=data, winner=branch.name)


def _with_heading(entry: StitchPart, text: str) -> str:
    if not entry.flows or not (text[0].islower() or text[0] in _GOES_ON):
        return entry.head + text
    return f"{entry.head.rstrip()}{'' if text[0] in _GOES_ON else ' '}{text}"


def _text(branch: Branch | None, entry: StitchPart) -> str:
    if branch is None or branch.result is None or branch.result.value is None:
        return ""
    text = strip_thoughts(branch.result.text, open_ended=True).strip()
    for echo in entry.echo:
        text = _strip_echo(text, echo)
    return text


def _strip_echo(text: str, echo: str) -> str:
    """Return a text without `echo` at its start, where case, white space and marks of emphasis do not count."""
    wanted = [char.casefold() for char in echo if char not in _MARKS]
    at = 0
    for char in wanted:
        while at < len(text) and text[at] in _MARKS:
            at += 1
        if at == len(text) or text[at].casefold() != char:
            return text
        at += 1
    if at < len(text) and text[at - 1].isalnum() and text[at].isalnum():  # a longer word: it only begins like this
        return text
    return text[at:].lstrip(_REST) if wanted else text


def _reason(branch: Branch | None) -> str:
    if branch is None:
        return "was not run"
    if branch.failure is not None:
        return f"failed: {branch.failure.kind}: {branch.failure.message}"
    if branch.result is not None:
        return "wrote nothing"
    return "was stopped" if branch.state.ended else "was not done in time"
