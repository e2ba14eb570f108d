"""Merges of drafts: `synthesis` writes one answer from the drafts, `synthesis-drafts` lists them for a later call,
`synthesis-or-vote` takes the written answer or falls back to a vote."""

from __future__ import annotations

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
from plait.core.view import Branch
from plait.core.vocabulary import FreeText

from .._ballots import SettlingTally
from ._model_merge import ModelMerge, list_texts, silent_note, unique_name

__all__ = ["Synthesis", "SynthesisDrafts", "SynthesisOrVote"]


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
        description="What the task's verifier finds right ends the run: one such branch is enough by itself.",
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
