"""A worker with several models, each a function of the text so far, for planners in which models take turns."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from experiments._tools.worker import InProcess, text_of
from plait.core.events import Job
from plait.core.interfaces import Progress
from plait.core.ops import ModelCall, Plugin
from plait.core.result import Failure, Result, Usage
from plait.runtime.client.answer import Answer
from plait.runtime.client.client import AsyncOrchestrator
from plait.workers.scripted import generated

Model = Callable[[str], str]
"""Returns how a text goes on, to its end."""
Judge = Callable[[str], float]
"""Returns the probability of the highest label behind a text; the rest is that of the lowest."""


class Models(InProcess):
    """Tokens are words. A text that is continued reaches it as text."""

    name = "models"

    def __init__(self, models: Mapping[str, Model], judge: Judge = lambda text: 1.0) -> None:
        self._models, self._judge = models, judge
        self.models = tuple(models)
        self.calls: list[str] = []
        """Who was asked, in order; `NAME?` for a mark."""
        self.tokens = dict.fromkeys(models, 0)

    async def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        think = job.op
        assert isinstance(think, ModelCall)
        name = think.model or ""
        text = text_of(think)
        labels = think.sampling.labels
        self.calls.append(name + "?" * bool(labels))
        if labels:
            high = min(max(self._judge(text), 1e-9), 1 - 1e-9)
            known = {labels[0]: math.log(1 - high), labels[-1]: math.log(high)}
            yield Result(value=labels[-1], labels=known, usage=Usage(completion=1), finish="length")
            return
        words, cut = generated(self._models[name](text), think.sampling)
        self.tokens[name] += len(words)
        yield Result(value="".join(words), usage=Usage(completion=len(words)), finish=cut or "stop", logprob=-0.5)


def goes_on(whole: str, question: str = "Why?") -> Model:
    """A model that writes one text: whatever stands behind the question, it goes on behind as many characters."""

    def model(text: str) -> str:
        return whole[len(text.partition(question)[2]) :]

    return model


async def ran(worker: Models, planner: str, options: dict[str, Any], text: str = "Why?", **more: Any) -> Answer:
    """Run a planner on the models."""
    async with AsyncOrchestrator(workers=[worker]) as orchestrator:
        return await orchestrator.run(text, planner=Plugin(name=planner, options=options), **more)
