"""Scorer `model`: how promising a model finds a partial solution, by the probabilities of marks."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from plait.core.call_config import CallConfig, Uses, WithCallConfigs
from plait.core.declarations import Fidelity, Free
from plait.core.flow import Context
from plait.core.search import Scorer, SearchNode

__all__ = ["Model"]

ASK = "\n\nHow promising is the solution so far, from 0 (hopeless) to 9 (certain to be right)? One digit:\n"


class Model(WithCallConfigs, Scorer):
    """The expected mark: the model is asked for one of `labels` behind the path's text, and each label's value counts
    by the probability that the model gives to it. So one token tells 3.6 from 4.4, where a sampled mark would say 4.

    Example: of the marks 0, 1 and 2 the model finds 2 likely by 0.6, 1 by 0.2, and something else than a mark by 0.2:
    (0.6 · 1 + 0.2 · 0.5) / 0.8 = 0.875.

    The call continues the node's own token for token, so its prefix is computed. The worker has to tell the labels'
    probabilities: the local engine does, and servers do that list the likeliest tokens. As the value prompt of Tree of
    Thoughts (arXiv 2305.10601), which samples three words and adds up values given to them.
    """

    fidelity = Fidelity("variant", "the expected mark of one token", paper="2305.10601")

    judge: Annotated[CallConfig, Uses()] = Field(
        default=CallConfig(),
        description="The call. Its template is put behind the path's text; the model's next token is the mark. By "
        "default the model that writes the steps is asked.",
    )
    labels: Annotated[tuple[str, ...], Field(min_length=2, max_length=64), Free()] = Field(
        default=tuple("0123456789"), description="The marks, from worst to best. Each must be one token of the model's."
    )
    values: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = Field(
        default=(), description="What each label is worth; by default evenly spaced from 0 to 1."
    )

    @model_validator(mode="after")
    def _a_value_for_each(self) -> Model:
        if self.values and len(self.values) != len(self.labels):
            raise ValueError(f"there are {len(self.labels)} labels and {len(self.values)} values: give each its value")
        return self

    async def score(self, ctx: Context, question: str, node: SearchNode) -> float | None:
        """Return the expected value of the labels, whose probabilities are scaled to sum to 1."""
        ask = self.judge.text(ASK)
        # Another model has not read this line: it is given the text.
        if node.line is not None and self.judge.model is None:
            line = node.line.think([node.seen + ask], self.judge, labels=self.labels, label="score")
        else:
            line = ctx.think([question, node.text + ask], self.judge, labels=self.labels, label="score")
        labels = (await line).labels
        last = len(self.labels) - 1
        values = self.values or tuple(i / last for i in range(last + 1))
        # A label that the worker does not list is unlikelier than those that it does: as good as none.
        shares = [math.exp(labels[label]) if label in labels else 0.0 for label in self.labels]
        total = sum(shares)
        return sum(share * value for share, value in zip(shares, values, strict=True)) / total if total else None
