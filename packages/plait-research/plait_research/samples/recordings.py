"""Samples: recorded answers of models to questions, in one form. A file has one a line, each branch of a run is one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from plait.apps.common.dataset import raw_rows
from plait.core.errors import ConfigError
from plait.core.record import StepRecord
from plait.core.values import Frozen, as_text

from ..rollouts.export import ExportedRun


class RecordedSample(Frozen):
    """One answer to one question. Samples of a question are in the order in which they were drawn."""

    question: str
    """The question, or its name if the text may not be published."""
    model: str = ""
    answer: str | None = None
    """The answer in the form that votes compare: two samples agree if it is equal. `None`: the text has no answer."""
    right: bool | None = None
    """The grader's verdict; `None` if it was not graded."""
    tokens: int | None = Field(default=None, ge=0)
    """Number of generated tokens; `None` if it cannot even be estimated."""
    counted: bool = False
    """Whether `tokens` were counted; otherwise they are estimated from the text."""
    logprob: float | None = Field(default=None, le=0.0)
    """Mean log-probability (nats) of its tokens."""
    reward: float | None = None
    """The grader's score, if it grades more finely than right and wrong."""
    cost: float | None = Field(default=None, ge=0.0)
    """Cost in dollars."""
    text: str | None = None
    """The model's text."""


def write_samples(samples: Iterable[RecordedSample], out: Path) -> int:
    """Write samples, one per line, and return their number."""
    count = 0
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for sample in samples:
            file.write(json.dumps(sample.model_dump(exclude_defaults=True), ensure_ascii=False) + "\n")
            count += 1
    return count


def samples_of(runs: Iterable[ExportedRun], answers: Mapping[str, str]) -> Iterator[RecordedSample]:
    """Yield for each run the branches of its last vote that ended by themselves, or its answer if it has no vote.

    `answers` has right answers by question, for tasks that cannot grade.
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


def wanted_answers(path: Path) -> dict[str, str]:
    """Return right answers by question. Raises `ConfigError` for a line without them."""
    try:
        return {row["question"].strip(): str(row["answer"]) for row in read_lines(path)}
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: a line is no object with `question` and `answer`") from None


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the objects of a file of JSON lines. Raises `ConfigError` for an invalid line."""
    for row in raw_rows(path):
        if row.fault:
            raise ConfigError(f"{path}, line {row.line}: {row.fault}")
        yield row.fields
