"""A run's trace as plain data: steps, attempts, workers and votes, with times in seconds after submission."""

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
    """The task's wording of the answer; empty for branches without an answer."""
    steps: tuple[str, ...]
    verified: bool | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A join's verdict."""

    step: str
    at: float | None
    """Time of the decision; `None` without a decision."""
    verdict: str
    why: str
    early: bool
    """Reached with branches still out."""
    ballots: tuple[AnswerVotes, ...]
    """Empty for a join that uses all branches and chooses none."""
    unheard: tuple[str, ...]
    """Branches that were not done when the verdict was reached."""


@dataclass(frozen=True, slots=True)
class Contact:
    """One step's use of a segment of the prefix tree, in units of the tree."""

    step: str
    cached: int
    """Read from the prefix cache."""
    computed: int
    """Prefilled, as part of its prompt."""
    generated: int


@dataclass(slots=True)
class Segment:
    """A node of the prefix tree: a part of the context shared by the same steps."""

    id: int
    parent: int | None
    start: int
    """Start within the context."""
    length: int
    contacts: list[Contact] = field(default_factory=list[Contact])
    text: str = ""
    """Its text, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Clock:
    """From the trace's time `at` on, the wall clock (Unix time in seconds) is `zero` plus the trace's time."""

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
    """Mapping of the times to the wall clock: one clock per session of the run, oldest first."""
    model: str = ""
    """Empty if unknown, for example with scripted replies."""
    server: str | None = None
    """Address of the model's server."""
    plait: str = ""


@dataclass(slots=True)
class Trace(TracedRequest):
    """One run."""

    seconds: float = 0.0
    """Duration from submission to the end or the last event."""
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
    """Notes for the reader about missing or uncertain parts of the trace."""
    others: int = 0
    """Number of other runs in the same journal."""

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
