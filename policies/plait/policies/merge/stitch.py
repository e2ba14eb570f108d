"""Merge `stitch`: join texts that were written in parallel into one text, in the planned order."""

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
    """Name of the branch that wrote this part."""
    head: str = ""
    """Text before the branch's text."""
    flows: bool = False
    """Whether the model's turn began with the head. A text that continues in mid-sentence (a small letter, a comma)
    then stays on the head's line."""
    echo: tuple[str, ...] = ()
    """Texts that a model may repeat at the start of the part, such as its heading. They are removed; case, spaces and
    emphasis are ignored."""
    missing: str | None = None
    """Text for a branch without text, with `{reason}` filled in. `None` leaves out the part and its head."""


class Stitch(Merge):
    """Writes `head`, the parts with `separator` between them, and `tail`.

    A part is the branch's stripped text without a leading `<think>` block. A single branch without any text around it
    keeps its value and type. If no part is left, the value is `null`.
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
        """Return the text; `why` has the note, the number of parts and the missing branches."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.parts or tuple(StitchPart(branch=branch.name) for branch in branches)
        # There is nothing to join: the value keeps its type and its `why`.
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
            # `why` names a missing part, so that readers of this value know that it is incomplete.
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
    """Return a text without `echo` at its start, ignoring case, white space and marks of emphasis."""
    wanted = [char.casefold() for char in echo if char not in _MARKS]
    at = 0
    for char in wanted:
        while at < len(text) and text[at] in _MARKS:
            at += 1
        if at == len(text) or text[at].casefold() != char:
            return text
        at += 1
    if at < len(text) and text[at - 1].isalnum() and text[at].isalnum():  # a longer word that begins with the echo
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
