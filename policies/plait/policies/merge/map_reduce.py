"""Merge `map-reduce`: a model combines many texts into one, a few at a time. The branches map; this merge reduces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.interfaces import Verdict
from plait.core.ops import Join, Plugin
from plait.core.plan import Plan, Step
from plait.core.planning import ask_model
from plait.core.task import Task
from plait.core.view import Branch

from ._model_merge import ModelMerge, list_texts, silent_note, unique_name

__all__ = ["MapReduce"]

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
