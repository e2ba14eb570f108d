"""What a run's trace holds: steps, attempts, workers and votes as plain data, times in seconds after submission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...core.events import Status
from ...core.record import StepRecord
from ...core.result import Failure, Usage
from ...runtime.runlog import AttemptRecord, WorkerRecord


@dataclass(frozen=True, slots=True)
class AnswerVotes:
    """An answer of a vote, and the branches that gave it."""

    answer: str
    """As the task words it; empty for branches in which the task finds no answer."""
    steps: tuple[str, ...]
    verified: bool | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A join's verdict."""

    step: str
    at: float | None
    """When it was reached; `None` if it never was."""
    verdict: str
    why: str
    early: bool
    """Reached with branches still out."""
    ballots: tuple[AnswerVotes, ...]
    """Empty for a join that takes all of its branches and chooses none."""
    unheard: tuple[str, ...]
    """Branches that were not done when the verdict was reached."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What one step had to do with a segment of the prefix tree, in units of the tree."""

    step: str
    cached: int
    """Read from the prefix cache."""
    computed: int
    """Prefilled, as part of its prompt."""
    generated: int


@dataclass(slots=True)
class Segment:
    """A node of the prefix tree: a stretch of context that the same steps have in common."""

    id: int
    parent: int | None
    start: int
    """Where in the context it begins."""
    length: int
    contacts: list[Contact] = field(default_factory=list[Contact])
    text: str = ""
    """Its text, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Clock:
    """From `at` on the wall clock (Unix time, in seconds) is `zero` and the trace's time."""

    at: float
    zero: float
    exact: bool
    """False: known to the second only."""


@dataclass(slots=True)
class TracedRequest:
    """What a run was asked, and where it ran."""

    run: str
    text: str
    task: str
    planner: str
    policies: tuple[str, ...]
    budget: str
    seed: int
    clocks: tuple[Clock, ...]
    """How its times lie on the wall clock: one for each session that it was worked on in, oldest first."""
    model: str = ""
    """Empty where that is not known, as of a script."""
    server: str | None = None
    """Address of the server that had the model."""
    plait: str = ""


@dataclass(slots=True)
class Trace(TracedRequest):
    """One run."""

    seconds: float = 0.0
    """From submission to the end, or to the last event that there is."""
    status: Status | Literal["unfinished", "loading"] = "unfinished"
    """`loading`: its journal has not been read yet."""
    answer: str = ""
    verified: bool | None = None
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    critical_path_tokens: int = 0
    steps: list[StepRecord] = field(default_factory=list[StepRecord])
    attempts: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    waited_for: tuple[str, ...] = ()
    """The chain of steps, by id, that the end of the run waited for."""
    hosts: list[WorkerRecord] = field(default_factory=list[WorkerRecord])
    votes: list[Vote] = field(default_factory=list[Vote])
    segments: list[Segment] = field(default_factory=list[Segment])
    unit: Literal["tokens", "words"] = "tokens"
    """Unit of the prefix tree: words if the engine reported no token ids."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader should know about this trace: what is missing or uncertain."""
    others: int = 0
    """How many other runs are in the same journal."""

    def wall(self, at: float) -> float:
        """Return the Unix time, in seconds, of a time of this trace."""
        clock = next((clock for clock in reversed(self.clocks) if clock.at <= at), self.clocks[0])
        return clock.zero + at

    def step(self, id: str) -> StepRecord:
        """Return a step by id. Raises `KeyError`."""
        for step in self.steps:
            if step.step == id:
                return step
        raise KeyError(id)
