"""The interfaces that plugins implement: Planner, Policy, Merge, Task, Worker.

A plugin's class is its own configuration: a frozen pydantic model whose fields are its options, so flags, config files
and the journal's header come for free. This file fixes what each may see and say; it knows no implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from pydantic import JsonValue

from .errors import PlannerError
from .events import Event, Job
from .ir import Failure, Frozen, Kind, Plan, Plugin, Request, Result, Step
from .tool import ToolSpec
from .view import Branch, StepView, View

Style = Literal["serial", "direct", "threads"]


class Task(Frozen):
    """What a request means. An instance is bound to one request's text; everything is pure."""

    text: str
    """The request's text. A subclass validates it and raises `TaskError` with an example of what it takes."""

    def render(self, style: Style = "serial", width: int = 8) -> str:
        """Return the prompt. `style` asks for a mode of answering that the model was trained or told to use (one line
        of reasoning, the answer at once, spawned threads `width` wide); a task that has no such modes ignores it."""
        raise NotImplementedError

    def chat(self) -> bool:
        """Whether the prompt is a user's message, to be put through the model's chat template."""
        return False

    def extract(self, text: str) -> JsonValue:
        """Return the answer that a generated text claims, or `None`."""
        raise NotImplementedError

    def key(self, answer: JsonValue) -> str:
        """Return the canonical form in which equal answers are equal strings; votes are counted by it."""
        raise NotImplementedError

    def verify(self, answer: JsonValue) -> bool | None:
        """Return whether the answer is right, or `None` if that cannot be told."""
        return None


@dataclass(frozen=True, slots=True)
class Brief:
    """What a planner is told about a run."""

    request: Request
    task: Task
    tools: tuple[ToolSpec, ...] = ()


class Reader(Protocol):
    """A sans-IO parser of one expanding step, made anew for every attempt at it."""

    def feed(self, delta: str) -> Sequence[Plan]:
        """Take the next piece of text, of any length, and return the patches that are complete now."""
        ...

    def close(self, result: Result) -> Plan | None:
        """Take the step's result and return the last patch, or `None` if the step keeps its own value."""
        ...


class Planner(Frozen):
    """Turns a request into plans and patches. It runs outside the machine: what it says is journalled, so replay never
    calls it. It may raise anything; that fails the run (`start`) or the step (`reader`) and nothing else."""

    n_option: ClassVar[str | None] = None
    """Name of the field that says how many branches there are, for planners that have one: what `n=` of a run sets."""

    def start(self, brief: Brief) -> Plan:
        """Return the first plan, whose output is the run's answer."""
        raise NotImplementedError

    def reader(self, step: Step, brief: Brief) -> Reader:
        """Return a fresh reader for a step that expands."""
        raise PlannerError(f"{type(self).__name__} planned {step.name!r} to expand but has no reader for it")


@dataclass(frozen=True, slots=True)
class Stop:
    """A policy's order to give a step up, with the reason that people will read."""

    step: str
    reason: str


class Policy(Frozen):
    """Orders, places and prunes. It runs inside the machine and must be pure: a function of its arguments and options
    alone. A policy overrides only the methods it has an opinion on."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the key of a step that has just become ready; smaller runs first. Asked once a time."""
        return ()

    def place(self, step: StepView, view: View) -> str | None:
        """Return the name of a worker with a free slot, or `None` for no opinion."""
        return None

    def review(self, event: Event, view: View) -> Sequence[Stop]:
        """Return the steps to give up in the light of one event (`Progressed`, `Succeeded` or `Failed`)."""
        return ()


class Verdict(Frozen):
    """What a merge decided."""

    value: JsonValue
    why: str
    """Counts, margin, who was left out: one line that a person can read."""
    winner: str | None = None
    """Name of the branch whose value this is, if it is one branch's."""


class Merge(Frozen):
    """Makes one answer of many branches. Pure, like a policy."""

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict over branches in the join's order; branches without a result have `result is None`."""
        raise NotImplementedError

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether no outcome of the `outstanding` branches can change the verdict over those done."""
        return False


class Plugins(Protocol):
    """What the machine asks for plugins by name. Each raises `PluginError` for one that is not there; `task` raises
    `TaskError` for a text that the task cannot read."""

    def policy(self, spec: Plugin) -> Policy:
        """Return a policy."""
        ...

    def merge(self, spec: Plugin) -> Merge:
        """Return a merge."""
        ...

    def task(self, spec: Plugin, text: str) -> Task:
        """Return a task bound to a request's text."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """Text and tokens generated since a worker's last news of a job."""

    text: str = ""
    tokens: int = 0
    logprob: float | None = None
    ids: tuple[int, ...] = ()
    """The token ids, from a worker that can go on from ids."""
    group: float | None = None
    """Mean confidence (nats) of the last full window, if `Sampling.window` asks for it."""
    lowest: float | None = None
    """The lowest such mean so far."""


@runtime_checkable
class Worker(Protocol):
    """The only thing that touches the world. Its constructor is cheap; `start` does the work."""

    name: str
    slots: int
    """Jobs at the same time."""
    serves: tuple[Kind, ...]
    models: tuple[str, ...] = ()
    """Names that `Think.model` may ask for; empty: whatever it asks for."""
    cache_tokens: int | None = None
    """Tokens that its prefix cache holds, known after `start`."""
    block: int | None = None
    """Tokens in a block of that cache."""

    async def start(self) -> None:
        """Get ready, or raise a `WorkerError` with the cause and the remedy."""
        ...

    def run(self, job: Job) -> AsyncIterator[Progress | Result | Failure]:
        """Do one job: any number of `Progress`, then exactly one `Result` or `Failure`. After `cancel` the last item
        comes promptly and is a `Result` with `finish="cancelled"` and what was generated, or whatever it had ended in.
        A broken worker yields a `Failure` with `lost=True`. It raises nothing for a job's own trouble."""
        ...

    async def cancel(self, attempt: int) -> None:
        """Stop an attempt. Unknown and finished attempts are ignored."""
        ...

    def health(self) -> AsyncIterator[bool]:
        """Yield `True` when ready (again) and `False` when down but coming back; end when gone for good. The driver
        reads it from after `start` until `close`."""
        ...

    async def close(self) -> None:
        """Free everything. May be called twice, and after a failed `start`."""
        ...
