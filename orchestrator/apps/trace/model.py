"""What a run's trace holds: steps, attempts, workers, votes and stops as plain data, times in seconds after submission.

Decides the words that pictures and exports share. It does not know journals, nor how anything is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from ...core.events import Status
from ...core.plan import Kind
from ...core.result import Failure, Usage

__all__ = [
    "Attempt",
    "Ballot",
    "Change",
    "Clock",
    "Contact",
    "Host",
    "Piece",
    "Segment",
    "Step",
    "Trace",
    "Vote",
]


@dataclass(frozen=True, slots=True)
class Change:
    """A step moved into a state."""

    at: float
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a step's prompt: text of its own, the value of another step, or the context that it continues."""

    kind: Literal["text", "tokens", "value", "context"]
    text: str = ""
    tokens: int = 0
    """Of raw token ids, which stand in no text."""
    step: str | None = None
    """Whose value or context."""
    own: bool = False
    """For a context: only what that step generated itself, and not what its expansion added."""


@dataclass(slots=True)
class Step:
    """One step."""

    id: str
    name: str
    kind: Kind
    label: str
    owner: str | None
    """Id of the step that expanded into it."""
    needs: tuple[str, ...]
    """Ids of the steps whose values it reads; for a join, its branches in order."""
    after: str | None
    """Id of the step whose context it continues."""
    entered: float
    moves: tuple[Change, ...] = ()
    """Oldest first. Before the first it is waiting."""
    prompt: tuple[Piece, ...] = ()
    tool: str = ""
    args: JsonValue = None
    merge: str = ""
    """For a join: its merge, with options."""
    rule: str = ""
    """For a join: when it ends."""
    sampling: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    text: str = ""
    """What its own attempt or merge ended in (JSON where that is no string), or had generated when it was given up."""
    value: str | None = None
    """Its value to others, where its expansion gave it another than its own."""
    why: str = ""
    """For a join: why it chose what it chose."""
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    """Of all its attempts."""
    tries: int = 0
    expands: bool = False
    side_effects: bool = False
    budget: str = ""
    priority: int = 0
    logprob: float | None = None
    signals: dict[str, JsonValue] | None = None
    chain: bool = False
    """It is part of the chain of steps that the end of the run waited for."""

    def state_at(self, at: float) -> str:
        """Return its state at a time; `absent` before it entered the plan."""
        if at < self.entered:
            return "absent"
        place = bisect_right([move.at for move in self.moves], at)
        return self.moves[place - 1].state if place else "waiting"

    @property
    def state(self) -> str:
        """Its last state."""
        return self.moves[-1].state if self.moves else "waiting"

    @property
    def reason(self) -> str:
        """Why it ended as it did, if that was said."""
        return self.moves[-1].reason if self.state in ("failed", "cancelled") else self.why

    @property
    def ended(self) -> float | None:
        """When it reached its last state, if that is one that a step does not leave."""
        return self.moves[-1].at if self.state in ("done", "failed", "cancelled") else None


@dataclass(slots=True)
class Attempt:
    """One dispatch of a step to a worker."""

    id: int
    step: str
    worker: str
    start: float
    end: float | None = None
    """`None`: the journal ends before it did."""
    ending: Literal["", "succeeded", "failed", "stopped", "lost"] = ""
    lane: int = 0
    """A slot of the worker that nothing else held meanwhile."""
    placed: str = ""
    """Why on that worker, if a policy said so."""
    stopping: float | None = None
    """When the worker was told to stop it."""
    stop_reason: str = ""
    first: float | None = None
    """When the first of its text arrived, if it streamed."""
    progress: tuple[tuple[float, int], ...] = ()
    """Time, and tokens generated until then."""
    usage: Usage = field(default_factory=Usage)
    read: bool = False
    """Whether what it generated became its step's value."""
    finish: str = ""
    failure: Failure | None = None


@dataclass(slots=True)
class Host:
    """One worker."""

    name: str
    slots: int
    serves: tuple[Kind, ...]
    ups: list[tuple[float, float | None]] = field(default_factory=list[tuple[float, float | None]])
    """From when until when it was there."""


@dataclass(frozen=True, slots=True)
class Ballot:
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
    ballots: tuple[Ballot, ...]
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
    """Its text, as far as that can be told."""


@dataclass(frozen=True, slots=True)
class Clock:
    """From `at` on the wall clock (Unix time, in seconds) is `zero` and the trace's time."""

    at: float
    zero: float
    exact: bool
    """False: known to the second only."""


@dataclass(slots=True)
class Trace:
    """One run."""

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
    plait: str = ""
    seconds: float = 0.0
    """From submission to the end, or to the last event that there is."""
    status: Status | Literal["unfinished"] = "unfinished"
    answer: str = ""
    verified: bool | None = None
    failure: Failure | None = None
    usage: Usage = field(default_factory=Usage)
    critical_path_tokens: int = 0
    steps: list[Step] = field(default_factory=list[Step])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    hosts: list[Host] = field(default_factory=list[Host])
    votes: list[Vote] = field(default_factory=list[Vote])
    segments: list[Segment] = field(default_factory=list[Segment])
    unit: Literal["tokens", "words"] = "tokens"
    """Of the prefix tree: words where the engine told no token ids."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader should know about this trace: what is missing or uncertain."""
    others: tuple[str, ...] = ()
    """Other runs in the same journal."""

    def wall(self, at: float) -> float:
        """Return the Unix time, in seconds, of a time of this trace."""
        clock = next((each for each in reversed(self.clocks) if each.at <= at), self.clocks[0])
        return clock.zero + at

    def step(self, id: str) -> Step:
        """Return a step by id. Raises `KeyError`."""
        for each in self.steps:
            if each.id == id:
                return each
        raise KeyError(id)
