"""A sample: one answer that a model once gave to a question, and what is known of it. A file has one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from plait.core.values import Frozen

__all__ = ["CHARACTERS", "RecordedSample", "estimated", "write_samples"]

CHARACTERS = 4
"""Average characters of English per token, used without a count: the usual rule of thumb."""


class RecordedSample(Frozen):
    """One answer to one question. Samples of a question are in the order in which they were drawn."""

    question: str
    """The question, or a name of it where its text may not be passed on."""
    model: str = ""
    answer: str | None = None
    """As votes count it: two samples agree if these are equal. `None`: the text has no answer."""
    right: bool | None = None
    """The grader's verdict; `None` if it was not graded."""
    tokens: int | None = Field(default=None, ge=0)
    """Generated tokens; `None` if they cannot even be estimated."""
    counted: bool = False
    """Whether `tokens` were counted; otherwise they are estimated from the text."""
    logprob: float | None = Field(default=None, le=0.0)
    """Mean log-probability (nats) of its tokens."""
    reward: float | None = None
    """Where the grader gives more than right and wrong."""
    cost: float | None = Field(default=None, ge=0.0)
    """In dollars."""
    text: str | None = None
    """What the model wrote."""


def estimated(text: str) -> int:
    """Return the estimated number of tokens of a text.

    >>> estimated("The answer is 4.")
    4
    """
    return max(1, round(len(text) / CHARACTERS)) if text else 0


def write_samples(samples: Iterable[RecordedSample], out: Path) -> int:
    """Write samples, one per line, and return their number."""
    count = 0
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for sample in samples:
            file.write(json.dumps(sample.model_dump(exclude_defaults=True), ensure_ascii=False) + "\n")
            count += 1
    return count
