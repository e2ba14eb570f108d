"""Merge `synthesis`: one answer that a model writes after reading the texts of all branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.interfaces import Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.task import Task
from plait.core.view import Branch

from ._model_merge import ModelMerge, list_texts, silent_note, unique_name

__all__ = ["Synthesis"]

_WEIGH = """\
{question}

Here are {count} drafts, written independently of one another.

{drafts}

Weigh these drafts: keep what is right, correct what is wrong, and write one complete answer. End with the answer \
itself in the form in which the drafts give it.
"""


class Synthesis(ModelMerge):
    """A model reads the question and the branches' texts, as numbered drafts, and writes the answer.

    The join expands into that call. If the call fails, or what it wrote has no answer, the most frequent answer of the
    drafts counts (merge `synthesis-or-vote`). One branch with text is its own synthesis, and none gives `null`.
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
