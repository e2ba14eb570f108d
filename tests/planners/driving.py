"""Drives a planner's plans through the real machine, with a function in the place of the model and no clock.

Tokens are words. The model is asked with the words of its whole context and says how it would go on for ever; what the
step's stop words and token limit leave of that is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plait.core.causes import sentence
from plait.core.events import (
    Action,
    Cancel,
    Dispatch,
    Event,
    Expand,
    Failed,
    Finish,
    Job,
    Stopped,
    Succeeded,
    WorkerUp,
)
from plait.core.interfaces import Planner, PlanningContext
from plait.core.ops import ModelCall, Text, Tokens
from plait.core.request import Request
from plait.core.result import Failure, Result, Usage
from plait.machine.machine import Machine
from plait.runtime.driver.expander import Expander
from plait.runtime.plugins.loader import Plugins

Model = Callable[[list[str], Job], str | Failure]
Pick = Callable[[Sequence[Job]], int]


@dataclass
class Words:
    """A word-level tokenizer that learns words as it meets them."""

    words: list[str] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def encode(self, text: str) -> tuple[int, ...]:
        for word in text.split():
            if word not in self.ids:
                self.ids[word] = len(self.words)
                self.words.append(word)
        return tuple(self.ids[word] for word in text.split())

    def decode(self, ids: Sequence[int]) -> list[str]:
        return [self.words[i] for i in ids]


@dataclass
class Outcome:
    finish: Finish
    contexts: dict[str, list[str]] = field(default_factory=dict)
    """Prompt and output of every step that ran to its end, in words, by step id."""
    prompts: dict[str, list[str]] = field(default_factory=dict)
    """Prompt of every step that was dispatched."""
    cancelled: dict[str, str] = field(default_factory=dict)
    """Steps that were given up, with the reason."""
    late: int = 0


def drive(
    planner: Planner,
    request: Request,
    model: Model,
    *,
    pick: Pick = lambda jobs: 0,
    slots: int = 64,
    ids: bool = True,
) -> Outcome:
    """Run a request to its end. `pick` says which of the running jobs ends next; without `ids` the server is one that
    returns no token ids."""
    plugins, words = Plugins(), Words()
    machine = Machine(plugins)
    brief = PlanningContext(request, plugins.task(request.task, request.text), plugins=plugins)
    running: list[Job] = []
    outcome = Outcome(Finish(run="r", status="failed"))
    expander = Expander()
    events: list[Event] = [
        WorkerUp(at=0, worker="w", slots=slots, serves=("think",)),
        expander.start("r", planner, brief, 0),
    ]

    def act(action: Action) -> None:
        match action:
            case Dispatch(job=job):
                running.append(job)
                outcome.prompts[job.step] = _words(job, words)
            case Cancel(step=step, attempt=attempt):
                outcome.cancelled[step] = sentence(action.cause, action.about)
                if attempt is not None:
                    running[:] = [job for job in running if job.attempt != attempt]
                    events.append(Stopped(at=0, attempt=attempt))
            case Expand():
                events.extend(expander.expand(action, machine, 0))
            case Finish():
                outcome.finish = action
                expander.forget("r")
            case _:
                pass

    for _ in range(10_000):
        if events:
            for action in machine.handle(events.pop(0)):
                act(action)
            events.extend(expander.collect_events(machine, 0))
        elif running:
            job = running.pop(pick(running))
            events.append(_answer(job, model, words, outcome, ids))
        else:
            break
    outcome.late = machine.late
    assert not machine.runs and not machine.attempts, "work outlived its run"
    return outcome


def _words(job: Job, words: Words) -> list[str]:
    assert isinstance(job.op, ModelCall)
    out: list[str] = []
    for part in job.op.prompt:
        match part:
            case Text(text=text):
                out += words.decode(words.encode(text))
            case Tokens(ids=ids):
                out += words.decode(ids)
            case _:
                raise AssertionError(part)
    return out


def _answer(job: Job, model: Model, words: Words, outcome: Outcome, ids: bool) -> Event:
    assert isinstance(job.op, ModelCall)
    prompt = outcome.prompts[job.step]
    said = model(prompt, job)
    if isinstance(said, Failure):
        return Failed(at=0, attempt=job.attempt, failure=said)
    sampling = job.op.sampling
    out: list[str] = []
    finish = "stop"
    for word in said.split():
        if len(out) == sampling.max_tokens:
            finish = "length"
            break
        out.append(word)
        if word in sampling.stop:
            break
    outcome.contexts[job.step] = prompt + out
    result = Result(
        value=" ".join(out),
        prompt_ids=words.encode(" ".join(prompt)) if ids else (),
        token_ids=words.encode(" ".join(out)) if ids else (),
        usage=Usage(prompt=len(prompt), completion=len(out)),
        finish=finish,
    )
    return Succeeded(at=0, attempt=job.attempt, result=result)
