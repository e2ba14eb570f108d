"""A sample: one answer that a model once gave to a question, and what is known of it. A file has one a line; runs of
one's own have one for each branch of a vote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import Field

from plait.core.record import StepRecord
from plait.core.values import Frozen, as_text

from ..rollouts.export import ExportedRun

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


def samples_of(runs: Iterable[ExportedRun], answers: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Yield the branches of the last vote of each run that ended by themselves, or the answer of a run without a vote.

    `answers` has right answers by question, for tasks that cannot tell what is right.
    """
    for run in runs:
        want = answers.get(run.run.request.text.strip())
        for step in _branches(run):
            text = as_text(step.value)
            answer = run.task.extract(text) if isinstance(step.value, str) else step.value
            key = None if answer is None else run.task.key(answer)
            if want is not None:
                right = key is not None and key == run.task.key(run.task.extract(want) or want)
            else:
                right = False if answer is None else run.task.verify(answer)
            yield RecordedSample(
                question=run.run.request.text, model=run.run.request.planner.name, answer=key, right=right, text=text,
                tokens=step.usage.completion, counted=step.usage.sources.completion in ("server", "ids"),
                logprob=None if step.logprob is None else min(0.0, step.logprob),
            )  # fmt: skip


def _branches(run: ExportedRun) -> list[StepRecord]:
    steps = {step.step: step for step in run.run.steps}
    votes = [step for step in steps.values() if step.kind == "join" and len(step.needs) > 1]
    names = votes[-1].needs if votes else [step.step for step in steps.values() if step.kind == "think"][-1:]
    return [steps[name] for name in names if name in steps and steps[name].state == "done"]
