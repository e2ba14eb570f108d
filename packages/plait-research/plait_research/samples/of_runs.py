"""Samples out of runs of one's own: the branches of each vote, as journals keep them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from plait.core.record import StepRecord
from plait.core.values import as_text

from ..rollouts.export import ExportedRun
from .sample import RecordedSample

__all__ = ["samples_of"]


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
