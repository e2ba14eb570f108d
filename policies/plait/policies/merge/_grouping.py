"""Groups equivalent texts, by a model that compares two texts at a time, or by embeddings."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from pydantic import Field, JsonValue

from plait.core.call_config import CallConfig, Uses
from plait.core.declarations import Free
from plait.core.plan import Step
from plait.core.planning import ask_model
from plait.core.sampling import StructuredOutput
from plait.core.task import Task
from plait.core.values import Frozen
from plait.core.view import Branch

from .._similarity import cluster, cosine
from ._model_merge import ModelMerge, unique_name

_WORDS = StructuredOutput(kind="choice", spec=["yes", "no"], required=False)
_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
SAME_BY_MODEL = 0.5
"""Threshold for the model's probability of equality: more likely equal than not."""
SAME_BY_COSINE = 0.9
"""Threshold for the cosine of two embeddings."""


class Groups(Frozen):
    """Groups of branches (by name) so far."""

    whole: tuple[tuple[str, ...], ...] = ()
    """Whole groups; the first member represents the group."""
    open: tuple[str, ...] = ()
    """Branches without a group; the first one represents the next group."""
    calls: tuple[str, ...] = ()
    """Steps that compare the first of `open` with each of `others`, in order."""
    silent: int = 0
    """Comparisons without a result."""
    apart: tuple[str, ...] = ()
    """Branches that are known to differ from one another and are not compared."""

    @property
    def others(self) -> tuple[str, ...]:
        """Branches that the first of `open` is compared with."""
        head, *rest = self.open
        return tuple(other for other in rest if head not in self.apart or other not in self.apart)

    def settle_open(self) -> Groups:
        """Return the groups after each first branch of `open` without comparisons has become a group of its own."""
        groups = self
        while groups.open and not groups.others:
            update = {"whole": (*groups.whole, groups.open[:1]), "open": groups.open[1:]}
            groups = groups.model_copy(update=update)
        return groups


class Grouping(ModelMerge):
    """Base of the merges that group equivalent texts.

    A model compares pairs (leader clustering). It compares the first text with all the others at the same time, then
    the first text that differs with all the rest, and so on. So k groups take at most k rounds. The last "yes" or "no"
    of a reply counts. If a call fails or its reply has neither, the two texts stay apart.
    """

    threshold: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Threshold of a score: two are the same at this probability (of a model "
        "with `judge.logprobs`) or cosine (of embeddings); 0.5 and 0.9 if left out.",
    )
    judge: Annotated[CallConfig, Uses("question", "a", "b")] = Field(
        default=CallConfig(max_tokens=512, temperature=0.0),
        description="Says of two texts whether they come to the same. Its template has `{question}`, `{a}` and "
        '`{b}`. `form=choice`: an engine that can allows nothing but "yes" or "no". With `logprobs` the probability '
        "of the word counts, in place of the word alone: of a model that answers with one token.",
    )
    grouped: Annotated[Groups | None, Free()] = Field(
        default=None, description="The groups so far; set by the merge itself."
    )

    def comparisons(self, groups: Groups, shown: Mapping[str, str], template: str, task: Task) -> list[Step]:
        """Return the calls of the next round. `max_prompt_items` has each branch's text; `template` is ours."""
        head = groups.open[0]
        form = _WORDS if self.judge.form == "choice" else self.judge.form
        steps: list[Step] = []
        for i, other in enumerate(groups.others, 1):
            name = unique_name(f"same-{len(groups.whole) + 1}-{i}", shown)
            # the first text comes first, so that the calls of a round share their prefix
            two = {"a": self.excerpt(shown[head]), "b": self.excerpt(shown[other])}
            pieces = self.judge.text(template, question=task.render(), **two)
            steps.append(ask_model(task, name, pieces, self.judge, label=f"{head} and {other}", form=form))
        return steps

    def read_round(self, groups: Groups, by_name: Mapping[str, Branch]) -> Groups:
        """Return the groups after a round."""
        likenesses = [self.likeness(by_name.get(call)) for call in groups.calls]
        # Texts stay apart unless they are known to be equal: a wrong class would move votes.
        least = self.threshold or SAME_BY_MODEL
        scores = zip(groups.others, likenesses, strict=True)
        same = [other for other, score in scores if score is not None and score >= least]
        left = tuple(other for other in groups.open[1:] if other not in same)
        groups_now = (*groups.whole, (groups.open[0], *same))
        silent = groups.silent + likenesses.count(None)
        return Groups(whole=groups_now, open=left, silent=silent, apart=groups.apart).settle_open()

    def likeness(self, call: Branch | None) -> float | None:
        """Return the probability of equality from a call's reply, or `None` if the reply states none."""
        words = _WORD.findall(call.text) if call is not None and call.done else []
        if not words or call is None or call.result is None:
            return None
        sure = (
            math.exp(min(0.0, call.result.logprob)) if self.judge.logprobs and call.result.logprob is not None else 1.0
        )
        return sure if words[-1].lower() == "yes" else 1.0 - sure

    def by_embedding(self, names: Sequence[str], value: JsonValue, apart: Collection[str] = ()) -> Groups | None:
        """Return the groups by the vectors of `names`, in order. Each name joins the most similar earlier group, but
        two names in `apart` never share a group. Return `None` if the value is not a list with one vector a name."""
        vectors = read_vectors(value, len(names))
        if vectors is None:
            return None
        given = list(zip(names, vectors, strict=True))

        def like(a: tuple[str, list[float]], b: tuple[str, list[float]]) -> float:
            return -1.0 if a[0] in apart and b[0] in apart else cosine(a[1], b[1])

        members: dict[int, list[str]] = {}
        for name, head in zip(names, cluster(given, self.threshold or SAME_BY_COSINE, like), strict=True):
            members.setdefault(head, []).append(name)
        return Groups(whole=tuple(map(tuple, members.values())))


def read_vectors(value: JsonValue, n: int) -> list[list[float]] | None:
    """Return `n` vectors of one length and of finite numbers, or `None` if the value has another form."""
    # A tool made the value, so it may have any form. An incomplete list would not match the texts.
    if not isinstance(value, list) or len(value) != n:
        return None
    vectors: list[list[float]] = []
    for row in value:
        if not isinstance(row, list) or not row or (vectors and len(row) != len(vectors[0])):
            return None
        # `True` is an `int` in Python, but not a coordinate.
        numbers = [float(number) for number in row if isinstance(number, int | float) and not isinstance(number, bool)]
        if len(numbers) != len(row) or not all(map(math.isfinite, numbers)):
            return None
        vectors.append(numbers)
    return vectors
