"""The machine's mutable records (runs, scopes, nodes, attempts) and the table of a step's legal moves.

Private to `plait.core`: only the machine and its helpers write to them, everyone else sees them through
`view.py`. Nothing is decided here but which moves are legal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..core.errors import InvalidTransition
from ..core.interfaces import Merge, Policy
from ..core.plan import Budget, Kind, Request, Step, Text, Tokens
from ..core.result import Failure, Result, Usage
from ..core.states import MOVES, NAMES, Move, State, tell
from ..core.task import Task
from ..core.view import Branch, Ended, StepView


@dataclass(slots=True, eq=False)
class Node:
    """A step in the plan of a run."""

    id: str
    run: Run
    step: Step
    scope: Scope
    account: Account | None
    merge: Merge | None = None
    state: State = State.WAITING
    ended: bool = False
    """Whether `state` is one that a step does not leave."""
    deps: tuple[Node, ...] = ()
    """Steps whose values it needs (and the one whose context it continues, unless that is an expander around it)."""
    after: Node | None = None
    after_own: bool = False
    """It continues what an expander around it generated itself, not the value that this expansion will give."""
    dependants: list[Node] = field(default_factory=list["Node"])
    own_waiters: list[Node] | None = None
    """Steps of its own expansion that continue what it generated."""
    pending: int = 0
    """Needs that have not ended (for a join: branches)."""
    waits_for_all: bool = False
    """A join that a branch with a value moves only if it is the last to end."""
    branches_done: int = 0
    branches_failed: int = 0
    consumers: int = 0
    """Dependants that have not ended, and one more while its scope keeps it."""
    seen: list[Branch] | None = None
    """Of a join: its branches as its merge saw them last."""
    released: bool = False
    """It no longer reads its needs (a join that has its verdict and now expands)."""
    inner: Scope | None = None
    """What it expands into."""
    attempt: Attempt | None = None
    """The live attempt; of two the older one."""
    hedge: Attempt | None = None
    """The second live attempt, of a step that is hedged."""
    hedged: bool = False
    """It has had its one hedge."""
    generation: int = 0
    """Id of the attempt whose text is read; patches to any other are late."""
    checkpoint: Checkpoint | None = None
    """What lost attempts had generated, for the next one to go on from."""
    ran_on: str | None = None
    """The worker of the last attempt; in the end, of the one that gave its value."""
    prefix_group: PrefixGroup | None = None
    """The steps that share its context, in a run with policies."""
    held: str = ""
    """Why a policy holds it back; empty if none does."""
    asked: str | None = None
    """What it was held behind before it was let out to be asked about again."""
    tries: int = 0
    lost: int = 0
    interrupted: int = 0
    """How many of those losses were the end of our own process."""
    prompt: tuple[Text | Tokens, ...] = ()
    """Resolved prompt of the last attempt, for servers that return no token ids."""
    own: Result | None = None
    """What its own attempt (or merge) ended in."""
    result: Result | None = None
    """Its value to others: its own, or that of its expansion."""
    failure: Failure | None = None
    spent: Usage | None = None
    """Of all its attempts that are gone."""
    merged_into: str | None = None
    """Id of the step in whose favour a policy gave it up."""
    limited: bool = False
    """A budget or deadline cut something that it was made from."""
    ticket: int = 0
    """Its place by arrival in the ready queue, which it keeps when it is tried again; 0 until it was ready once."""
    turn: int = 0
    """The ticket on which it goes, in the eyes of runs with other policies: its own, or one that it traded."""
    woken: Account | None = None
    """The account that had held it back and lets it be asked about again now."""
    upward_rank: float = 0.0
    """Longest way from its start to the output, in tokens that may be generated."""
    path_before: int = 0
    """Most generated tokens along any chain that leads to its own start."""
    path_own: int = 0
    """`path_before` and its own tokens."""
    path: int = 0
    """Most generated tokens along any chain that its value was made from."""
    story: tuple[Move, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.id} {self.state.value}>"  # the records refer to one another: a field by field repr has no end

    def move(self, finish: State, at: float, reason: str = "") -> Move:
        """Move to a state and note it in the story, or raise `InvalidTransition`."""
        if finish not in MOVES[self.state]:
            raise InvalidTransition(self.id, self.state, finish, tuple(map(tell, self.story)))
        move = (at, self.id, NAMES[self.state], NAMES[finish], reason)
        self.state = finish
        self.ended = not MOVES[finish]
        self.story = (*self.story, move)
        return move


def lane_of(step: Step) -> str:
    """Return which workers a step needs: the kind they serve, and the model if it names one. Steps of one lane queue
    together."""
    op = step.op
    return f"think {op.model}" if op.kind == "think" and op.model is not None else op.kind


Queued = tuple[int, tuple[float, ...], int, Node]
"""A ready step in a queue: its priority, its rank, its ticket, itself."""


def is_current(entry: Queued) -> bool:
    """Whether an entry still stands for a step that is ready."""
    return entry[3].state is State.READY


@dataclass(slots=True, eq=False)
class Scope:
    """The names a step can see: the steps of one plan and its later patches, then those of the plans around it."""

    run: Run
    owner: Node | None
    """The step that expands into this; `None` for the first plan of a run."""
    parent: Scope | None
    prefix: str
    open: bool = True
    """More patches may come; until then its steps are kept even if nothing reads them yet."""
    names: dict[str, Node] = field(default_factory=dict[str, Node])
    output: Node | None = None


@dataclass(slots=True, eq=False)
class Attempt:
    """One dispatch of a step to a worker. Its slot is held until the worker has answered."""

    id: int
    node: Node
    worker: WorkerState
    reserved: int
    truncated: bool
    """It was granted fewer tokens than its step asked for."""
    heartbeat: float
    state: Literal["live", "stopping", "gone"] = "live"
    tokens: int = 0
    """Generated by it: without what it went on from."""
    text: list[str] = field(default_factory=list[str])
    started: float = 0.0
    resumed_from: Checkpoint | None = None
    """What it was told to go on from; `None` also once it is seen to have begun again."""
    continues: bool = False
    """It is seen to go on from what it was given."""
    ids: list[int] | None = None
    """What it generated, from a worker that says so."""
    group: float | None = None
    lowest: float | None = None
    priority: int = 0
    left: int = 0
    """Tokens of its reservation that it has not been heard to use."""
    room: int = 0
    """Tokens of context that it alone may come to hold on its worker, in a run with policies."""

    @property
    def generated(self) -> int:
        """Tokens of its text so far, those that it went on from included."""
        return self.tokens + len(self.resumed_from.ids) if self.resumed_from is not None else self.tokens

    def leave(self) -> None:
        """Be no longer among the live attempts at its step."""
        node = self.node
        if node.attempt is self:
            node.attempt, node.hedge = node.hedge, None
        elif node.hedge is self:
            node.hedge = None

    def reused(self, result: Result) -> int:
        """Return how many tokens of its result it went on from rather than generated."""
        if self.resumed_from is None:
            return 0
        ids = self.resumed_from.ids
        fewer = result.token_ids[: len(ids)] == ids and result.usage.completion < len(result.token_ids)
        return len(ids) if self.continues or fewer else 0

    def checkpoint(self) -> Checkpoint | None:
        """Return the text so far as another attempt can go on from it, as far as its token ids are known."""
        if not self.ids or len(self.ids) != self.tokens:
            return self.resumed_from
        before = self.resumed_from.ids if self.resumed_from is not None else ()
        return Checkpoint((*before, *self.ids), "".join(self.text))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The beginning of a step's text."""

    ids: tuple[int, ...]
    text: str
    """The same as text, if the step streams."""


@dataclass(slots=True, eq=False)
class Meter:
    """Running sum of usage."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cancelled: int = 0
    cost: float = 0.0
    reused: int = 0
    uncounted: int = 0

    def add(self, usage: Usage, read: bool) -> None:
        """Add an attempt's usage; `read` is whether its tokens went into a step's value."""
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.completion += usage.completion
        self.cost += usage.cost
        self.reused += usage.reused
        self.uncounted += usage.uncounted
        if not read:
            self.cancelled += usage.completion

    def reuse(self, tokens: int) -> None:
        """Take note that tokens of an attempt that was given up went into a step's value after all."""
        self.cancelled -= tokens

    def usage(self) -> Usage:
        """Return the sum."""
        return Usage(
            prompt=self.prompt,
            cached=self.cached,
            completion=self.completion,
            cancelled=max(0, self.cancelled),
            cost=self.cost,
            reused=self.reused,
            uncounted=self.uncounted,
        )


@dataclass(slots=True, eq=False)
class Run:
    """One request on its way to an answer."""

    id: str
    request: Request
    task: Task
    rankers: tuple[Policy, ...] = ()
    placers: tuple[Policy, ...] = ()
    reviewers: tuple[Policy, ...] = ()
    root: Scope | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    prefix_groups: dict[Hashable, PrefixGroup] = field(default_factory=dict["Hashable", "PrefixGroup"])
    live: int = 0
    """Attempts that are not gone."""
    parked: dict[str, list[Queued]] = field(default_factory=dict[str, list[Queued]])
    """Heaps of ready steps that a policy holds back, by what they wait behind."""
    forced: Node | None = None
    """A step that starts although a policy holds it, as nothing else of the run is under way."""
    wake: float | None = None
    """When a policy wants to review it."""
    meter: Meter = field(default_factory=Meter)
    cancelled: str | None = None
    """Why the user gave it up."""
    paused: bool = False
    """The user wants nothing more of it to start for now."""
    aside: list[Queued] = field(default_factory=list["Queued"])
    """Its steps that were due while it was paused."""
    broken: Failure | None = None
    """A policy raised."""

    @property
    def has_policies(self) -> bool:
        """Whether any policy looks at it."""
        return bool(self.rankers or self.placers or self.reviewers)


@dataclass(slots=True, eq=False)
class WorkerState:
    """A worker as the machine knows it."""

    name: str
    slots: int
    serves: tuple[Kind, ...]
    up: bool = True
    returning: bool = False
    running: int = 0
    """Attempts on it that are not gone."""
    carried: int = 0
    """Attempts on it when its slots were last counted: they may be more than it now has slots for."""
    models: tuple[str, ...] = ()
    cache_tokens: int | None = None
    block: int | None = None
    load: int = 0
    """Tokens that its attempts may still generate."""
    context: int = 0
    """Tokens of context that they may come to hold, what several share counted once; of runs with policies."""
    lanes: dict[str, None] = field(default_factory=dict[str, None])
    """Those that it serves."""

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        return self.slots - self.running if self.up else 0

    def could_take(self, step: StepView) -> bool:
        """Return whether it is up and serves a step's kind and model, free slot or not."""
        return self.up and lane_of(step.plan) in self.lanes

    def takes(self, step: StepView) -> bool:
        """Return whether it serves a step's kind and model, and has a free slot."""
        return self.free > 0 and lane_of(step.plan) in self.lanes

    def see_lanes(self, lanes: Iterable[str]) -> None:
        """Find which of all lanes it serves."""
        self.lanes = {}
        for lane in lanes:
            kind, _, model = lane.partition(" ")
            if kind in self.serves and (not model or not self.models or model in self.models):
                self.lanes[lane] = None


@dataclass(slots=True, eq=False)
class Account:
    """Running totals against one budget."""

    budget: Budget
    owner: str
    """Whose budget it is, for messages."""
    parent: Account | None
    deadline: float | None = None
    tokens: int = 0
    reserved: int = 0
    overrun: int = 0
    """Tokens that workers generated beyond what they were granted."""
    attempts: int = 0
    running: int = 0
    cost: float = 0.0
    steps: int = 0
    held: dict[str, list[Queued]] = field(default_factory=dict[str, list[Queued]])
    """Heaps of ready steps, by lane, that wait for something under this account to end."""
    timed: list[Node] = field(default_factory=list["Node"])
    """The steps that its deadline concerns, in the order they came; empty without one."""

    def chain(self) -> Iterator[Account]:
        """Yield this account and those around it, innermost first."""
        account: Account | None = self
        while account is not None:
            yield account
            account = account.parent


@dataclass(slots=True, eq=False)
class PrefixGroup:
    """Steps of a run that continue the same context or begin with the same prompt (calls: that call the same tool)."""

    nodes: list[Node] = field(default_factory=list["Node"])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that were dispatched, by worker, in order of the first."""
    live: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that are not gone, by worker."""
    finished: list[Ended] = field(default_factory=list[Ended])
    """Those that ended in a value, the first first."""

    room: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of the shared context, by worker with a live attempt."""


_PEERS = 256
"""Ends of steps of one class that are remembered."""


class LatencyStats:
    """How long steps of each class took lately, in all runs that have policies."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, deque[Ended]] = {}

    def add(self, step: Step, ended: Ended) -> None:
        """Take note of an attempt that ended in a value."""
        self._ends.setdefault(_class(step), deque(maxlen=_PEERS)).append(ended)

    def of(self, step: Step) -> tuple[Ended, ...]:
        """Return the last ones of a step's class, the oldest first."""
        return tuple(self._ends.get(_class(step), ()))


def _class(step: Step) -> Hashable:
    op = step.op
    if op.kind == "think":
        return (op.model, op.sampling.max_tokens, op.after is None)
    return op.tool if op.kind == "call" else None
