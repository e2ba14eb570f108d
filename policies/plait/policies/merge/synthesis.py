"""Merges that write one text: `synthesis` writes one answer from the drafts, `synthesis-drafts` lists them for a later
call; `map-reduce` combines texts a few at a time (the branches map; this merge reduces), `stitch` joins texts in the
planned order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.interfaces import Merge, Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import SettlingTally, strip_thoughts
from ._model_merge import ModelMerge, list_texts, silent_note, unique_name

__all__ = ["MapReduce", "Stitch", "Synthesis", "SynthesisDrafts", "SynthesisOrVote"]


_COMBINE = """\
Request:
{question}

{parts}

Combine these parts into one text that answers the request. Leave nothing out that matters, say nothing twice.
"""


class MapReduce(ModelMerge):
    """A model combines up to `fan_in` texts at a time, with all groups of a level in parallel, until one text is left.

    n texts take about log n / log `fan_in` levels. The order of the branches is kept. A group whose call fails is left
    out of the next level; the join fails if all of a level do. One text is its own reduction, and none gives `null`.
    """

    fan_in: Annotated[int, Free()] = Field(default=4, ge=2, description="Texts that one call reads.")
    summary: Annotated[CallConfig, Uses("question", "parts")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0),
        description="Makes one text of several. Its template has `{question}` and `{parts}`.",
    )
    level: Annotated[int, Free()] = Field(default=0, ge=0, description="Levels done so far; set by the merge itself.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the last text, or the next level as more plan; `why` has the number of texts."""
        parts = list_texts(branches)
        why = f"{len(parts)} texts{silent_note(branches)}"
        if len(parts) < 2:
            only = parts[0] if parts else None
            value: JsonValue = only.result.value if only and only.result else None
            return Verdict(value=value, why=f"reduced in {self.level} levels; {why}")
        names = [part.name for part in parts]
        groups = math.ceil(len(parts) / self.fan_in)
        size = math.ceil(len(parts) / groups)  # even groups, so that few have a single text
        calls: list[Step] = []
        for i in range(groups):
            group = parts[i * size : (i + 1) * size]
            written = "\n\n".join(f"Part {j}:\n{self.excerpt(part.text)}" for j, part in enumerate(group, 1))
            pieces = self.summary.text(_COMBINE, question=task.render(), parts=written)
            name = unique_name(f"reduce-{i + 1}", names)
            calls.append(ask_model(task, name, pieces, self.summary, label=f"reduce {len(group)}"))
        options = {**self.model_dump(mode="json"), "level": self.level + 1}
        needs = tuple(call.name for call in calls)
        end = Step(
            name=unique_name("reduced", names),
            op=Join(merge=Plugin(name="map-reduce", options=options), on_failure="best-effort"),
            needs=needs,
            label=f"level {self.level + 1}",
        )
        return Verdict(value=None, why=why, patch=Plan(steps=(*calls, end), output=end.name))


_WEIGH = """\
{question}

Here are {count} drafts, written independently of one another.

{drafts}

Weigh these drafts: keep what is right, correct what is wrong, and write one complete answer. End with the answer \
itself in the form in which the drafts give it.
"""


class Synthesis(ModelMerge):
    """A model reads the question and the branches' texts, as numbered drafts, and writes the answer.

    The join expands into that call. If the call fails or writes no answer, the merge returns the drafts' most frequent
    answer (`synthesis-or-vote`). A single text is returned unchanged; without text the value is `null`.
    """

    answer: Annotated[CallConfig, Uses("question", "count", "drafts")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0),
        description="Writes the answer. Its template has `{question}`, and `{drafts}`, `{count}` of them.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the call as more plan; `why` counts the drafts."""
        drafts = list_texts(branches)
        why = f"{len(drafts)} of {len(branches)} branches have text{silent_note(branches)}"
        if len(drafts) < 2:
            only = drafts[0] if drafts else None
            value: JsonValue = only.result.value if only and only.result else None
            return Verdict(value=value, why=f"nothing to synthesise: {why}", winner=only.name if only else None)
        names = [draft.name for draft in drafts]
        ask, end = unique_name("synthesis-call", names), unique_name("synthesis-answer", names)
        written = "\n\n".join(f"Draft {i}:\n{self.excerpt(draft.line)}" for i, draft in enumerate(drafts, 1))
        pieces = self.answer.text(_WEIGH, question=task.render(), count=str(len(drafts)), drafts=written)
        call = ask_model(task, ask, pieces, self.answer, label=f"synthesis of {len(drafts)}")
        op = Join(merge=Plugin(name="synthesis-or-vote", options={"note": why}), on_failure="any-end")
        steps = (call, Step(name=end, op=op, needs=(ask, *names), label="synthesis or vote"))
        return Verdict(value=None, why=why, patch=Plan(steps=steps, output=end))


class SynthesisDrafts(Merge):
    """The value is a list with one object for each branch that has text, in the join's order:

    `name`, `text`, `done` (false: stopped while writing), `tokens`, `logprob` (mean, or null), `answer` (as the task
    extracts it, or null), `key` (the answer's canonical form, or null), `verified` (true, false, or null if the task
    cannot judge it or the branch is not done).

    Use it in a join that is `early` for `enough` and `stop_on_verified` to have an effect.
    """

    enough: Annotated[int | None, Free()] = Field(
        default=None,
        ge=1,
        description="Branches that need to be done: with 1 the first that ends decides (First-Finish, "
        "ParaThinker, arXiv 2509.04475). Without it all are waited for.",
    )
    partial: bool = Field(
        default=False,
        description="Keep what the others have written so far when `enough` are done. Only of steps that stream.",
    )
    stop_on_verified: bool = Field(
        default=False,
        description="Stop at the first answer that the task's verifier accepts: one such branch is enough by itself.",
    )

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the records; `why` has their number."""
        records: list[JsonValue] = []
        done = right = 0
        for branch in branches:
            record = self._record(branch, task)
            if record is not None:
                records.append(record)
                done += record["done"] is True
                right += record["verified"] is True
        why = f"{done} of {len(branches)} drafts"
        if len(records) > done:
            why += f" and what {len(records) - done} others had written"
        if right:
            why += f"; {right} verified"
        return Verdict(value=records, why=why)

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether `enough` branches are done, or one answer is verified."""
        if outstanding <= 0:
            return True
        # The other branches may still be writing; their partial texts are drafts too.
        if self.enough is not None and sum(branch.done for branch in branches) >= self.enough:
            return True
        return self.stop_on_verified and any(
            record is not None and record["verified"] is True
            for record in (self._record(branch, task) for branch in branches if branch.done)
        )

    def tally(self, task: Task) -> SettlingTally:
        """Return a tally that finds a verified draft and counts the finished drafts."""

        def verified(branch: Branch) -> bool:
            record = self._record(branch, task) if self.stop_on_verified and branch.done else None
            return record is not None and record["verified"] is True

        return SettlingTally(verified, self.enough)

    def _record(self, branch: Branch, task: Task) -> dict[str, JsonValue] | None:
        if not branch.done or branch.result is None:
            text = branch.line if self.partial else ""
            if not text.strip():
                return None
            facts: dict[str, JsonValue] = {"answer": None, "key": None, "verified": None, "logprob": None}
            return {"name": branch.name, "text": text, "done": False, "tokens": branch.tokens, **facts}
        result = branch.result
        answer = None if result.value is None else task.extract(result.line)
        return {
            "name": branch.name,
            "text": result.line if result.value is not None else "",
            "done": True,
            "tokens": 0 if result.prior else result.length,  # of the whole text; 0: not counted
            "logprob": result.logprob,
            "answer": answer,
            "key": None if answer is None else task.key(answer),
            "verified": None if answer is None else task.verify(answer),
        }


class SynthesisOrVote(Merge):
    """The first branch is the synthesis; the other branches are its sources. The value is the text of the first match:

    1. the synthesis, if it has an answer, unless that is verified wrong while a source is verified right;
    2. the first source that is verified right;
    3. the first source with the answer that most sources give;
    4. a source verified wrong, or the synthesis without an answer.
    """

    note: FreeText = Field(default="", description="Start of `why`: a planner's words for people.")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict; `why` states whether it is the synthesis or a source."""
        lead, sources = branches[0], branches[1:]
        answer = _answer(lead, task)
        truth = None if answer is None else task.verify(answer)
        if answer is not None and truth is not False:
            return self._verdict(lead, f"a synthesis of {len(sources)} drafts" if len(sources) > 1 else "a synthesis")
        votes: dict[str, tuple[int, int, Branch]] = {}
        for branch in sources:
            claim = _answer(branch, task)
            if claim is None:
                continue
            right = {True: 1, None: 0, False: -1}[task.verify(claim)]
            _, count, first = votes.get(task.key(claim), (right, 0, branch))
            votes[task.key(claim)] = (right, count + 1, first)
        what = "found wrong" if truth is False else _state(lead)
        best = max(votes.values(), key=lambda vote: vote[:2], default=None)
        if best is None or (truth is False and best[0] < 1):
            if lead.result is None:
                return Verdict(value=None, why=self._why(f"the synthesis {what}, and no draft has an answer"))
            return self._verdict(lead, f"the synthesis {what}" if truth is False else "the synthesis has no answer")
        total = sum(count for _, count, _ in votes.values())
        how = "verified" if best[0] == 1 else f"{best[1]} of {total} votes"
        return self._verdict(best[2], f"a draft ({how}): the synthesis {what}")

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether the synthesis is the answer for any result of the sources."""
        if outstanding <= 0:
            return True
        answer = _answer(branches[0], task)
        return answer is not None and task.verify(answer) is not False

    def _verdict(self, branch: Branch, why: str) -> Verdict:
        assert branch.result is not None
        return Verdict(value=branch.result.value, why=self._why(why), winner=branch.name)

    def _why(self, reason: str) -> str:
        return f"{self.note}; {reason}" if self.note else reason


def _answer(branch: Branch, task: Task) -> JsonValue:
    if not branch.done or branch.result is None or branch.result.value is None:
        return None
    return task.extract(branch.result.line)


def _state(branch: Branch) -> str:
    if branch.failure is not None:
        return f"failed: {branch.failure.kind}: {branch.failure.message}"
    return "has no answer" if branch.result is not None else "was stopped"


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
    """Writes `head` and the parts with `separator` between them.

    A part is the branch's stripped text without a leading `<think>` block. A single branch without any text around it
    keeps its value and type. If no part is left, the value is `null`.
    """

    parts: Annotated[tuple[StitchPart, ...], Free()] = Field(
        default=(), description="The parts in order. Empty: one for each branch, in the join's order."
    )
    head: FreeText = Field(default="", description="Text before the first part.")
    separator: FreeText = Field(default="\n\n", description="Between the branches' texts in the answer.")
    note: FreeText = Field(default="", description="Start of `why`: a planner's words for people.")
    data: Annotated[JsonValue, Free()] = Field(default=None, description="Data for programs (`Answer.data`).")

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the text; `why` has the note, the number of parts and the missing branches."""
        by_name = {branch.name: branch for branch in branches}
        entries = self.parts or tuple(StitchPart(branch=branch.name) for branch in branches)
        # There is nothing to join: the value keeps its type and its `why`.
        if len(entries) == 1 and entries[0] == StitchPart(branch=entries[0].branch) and not self.head:
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
        value = self.head + self.separator.join(parts) if parts else None
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
