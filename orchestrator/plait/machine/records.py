"""The records of a machine: runs, scopes, steps, attempts, workers, accounts. Plain data with a few one-line questions.

Only the modules of this folder write to them. Everyone else reads them, or sees a step through `StepView`. Nearly every
rule about them is in `invariants.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ..core.budget import Budget
from ..core.causes import Cause
from ..core.chat import Message
from ..core.errors import InvalidTransition
from ..core.events import Action
from ..core.interfaces import Merge, Policy, Tally
from ..core.ops import Kind, Text, Tokens
from ..core.plan import Step
from ..core.prefix_index import PrefixIndex
from ..core.prices import Price
from ..core.record import Change
from ..core.request import Request
from ..core.result import Failure, Result, Usage
from ..core.states import MOVES, NAMES, READY, UNDER_WAY, WAITING, Move, State, tell
from ..core.task import Task
from ..core.view import AttemptEnd, Branch, StepView
from ..core.weights import Weight
from .backlog import Backlog
from .figures import Checkpoint, DecodeSpeed, EndedSteps, Figures, Meter, Share, TemplateKeys, lane_of, template_keys
from .series import Series, TalkHistory


@dataclass(slots=True, eq=False, init=False)
class Node:
    """A step in the plan of a run.

    The counts obey two rules. `pending` is how many needs have not ended; at 0 the step is ready. `consumers` is how
    many steps still want its value; at 0 the step is cancelled.
    """

    id: str
    run: Run
    step: Step
    scope: Scope
    account: Account | None
    """Innermost budget account over it; `None` without any budget."""
    merge: Merge | None
    """Of a join: its merge."""
    priority: int
    """Of its request and its step together: the smaller the earlier."""
    lane: str
    """Name of the queue that it waits in (`lane_of`)."""
    state: State
    ended: bool
    """Whether `state` is one that a step does not leave."""

    deps: tuple[Node, ...]
    """Steps whose values it needs, and the one whose context it continues, unless that is an expander around it."""
    after: Node | None
    """The step whose context it continues."""
    after_own: bool
    """It continues the text that an expander around it generated itself, not the value of that expansion."""
    dependants: list[Node] | tuple[Node, ...]
    """Steps that have it among their `deps`; a list once there is one."""
    own_waiters: list[Node] | None
    """Steps of its own expansion that wait for the text that it generates itself (`after_own`)."""
    pending: int
    """Needs that have not ended (for a join: branches)."""
    consumers: int
    """Dependants that have not ended and still want its value, and one more while its scope keeps it."""
    released: bool
    """A join that has its verdict, expands, and wants its branches no longer."""
    inner: Scope | None
    """The scope of the steps that it expands into."""

    waits_for_all: bool
    """A join that can only close when its last branch has ended, unless one of them fails."""
    branches_done: int
    branches_failed: int
    branches_going: int
    """Those that are under way; counted in runs with policies."""
    seen: list[Branch] | None
    """Of a join: its branches as its merge saw them last."""
    tally: Tally | None
    untallied: list[Node] | None
    """Of a join: what its merge has counted, once that was asked for, and the branches that have ended since then."""

    attempt: Attempt | None
    """The live attempt; of two the older one."""
    hedge: Attempt | None
    """The second live attempt, of a step that is hedged."""
    hedged: bool
    """It has had its one hedge, which may be over."""
    generation: int
    """Id of the attempt whose text the planner reads; patches to any other are late."""
    tries: int
    lost: int
    """Tries that ended because the worker was lost."""
    interrupted: int
    """Those of them where our own process had ended."""
    lost_on: tuple[str, ...]
    """Workers that went away while they ran the step, each another than the one before."""
    checkpoint: Checkpoint | None
    """The beginning of its text that a lost attempt had generated; the next attempt goes on from there."""
    sent: Series[Text | Tokens] | None
    """Its whole prompt as text and tokens, once something has asked for it (`assemble.prompt`)."""
    talk: TalkHistory | None
    """The conversation that its turn ended, once a later turn has gone on with it."""
    ran_on: str | None
    """The worker of the last attempt; in the end, of the one that gave its value."""
    prefix_group: PrefixGroup | None
    """The steps that share its context, in a run with policies."""

    ticket: int
    """Its number by arrival in the ready queue, which it keeps when it is tried again; 0 before it was ready."""
    turn: int
    """The ticket on which it goes beside steps of other orders (`ready_queue.py`): its own or one that it swapped."""
    rank: tuple[float, ...]
    """Of its policies, the smaller the earlier; empty without one that ranks."""
    blocked: Blockage | None
    """Why it is ready and may not start. Still set while it is asked about again."""

    own: Result | None
    """The result of its own attempt (or merge)."""
    result: Result | None
    weight: Weight | None
    """Its value to others: its own, or that of its expansion; and what that weighs, once it was asked for."""
    failure: Failure | None
    spent: Usage | None
    """Usage of all its attempts that are gone."""
    merged_into: str | None
    """Id of the step in whose favour a policy gave it up."""
    limited: Failure | None
    """The budget or deadline that limited something that it was made from."""

    upward_rank: float
    """Longest way from its start to the output, in tokens that may be generated."""
    path_before: int
    """Most generated tokens along any chain that leads to its own start."""
    path_own: int
    """`path_before` and its own tokens."""
    path: int
    """Most generated tokens along any chain that its value was made from."""
    cause: Cause | None
    """Why it was given up, if it was."""
    _moves: tuple[float | str, ...]
    """Its moves so far, three entries each: when, into which state, why. One flat tuple of atoms: nothing for the
    garbage collector to follow."""

    def __init__(
        self,
        id: str,
        run: Run,
        step: Step,
        scope: Scope,
        account: Account | None,
        merge: Merge | None,
        priority: int,
        lane: str,
    ) -> None:
        self.id = id
        self.run = run
        self.step = step
        self.scope = scope
        self.account = account
        self.merge = merge
        self.priority = priority
        self.lane = lane
        self.state = WAITING
        self.ended = self.after_own = self.released = self.waits_for_all = self.hedged = False
        self.deps = self.dependants = self.rank = self._moves = self.lost_on = ()
        self.after = self.own_waiters = self.inner = self.seen = self.attempt = self.hedge = self.checkpoint = None
        self.ran_on = self.prefix_group = self.blocked = self.own = self.result = self.failure = self.spent = None
        self.merged_into = self.limited = self.cause = None
        self.pending = self.consumers = self.branches_done = self.branches_failed = self.branches_going = 0
        self.generation = self.tries = self.lost = self.interrupted = self.ticket = self.turn = self.path_before = 0
        self.path_own = self.path = 0
        self.tally = self.sent = self.talk = self.untallied = self.weight = None
        self.upward_rank = 0.0

    @property
    def template_keys(self) -> TemplateKeys:
        """What it is compared by with steps that ended."""
        return template_keys(self.step, self.run.request.planner.name)

    def __repr__(self) -> str:
        return f"<{self.id} {self.state.value}>"  # the records refer to one another: a field by field repr has no end

    def move(self, finish: State, records: Records, reason: str = "", cause: Cause | None = None) -> None:
        """Move to a state, noted in the story and for watchers, or raise `InvalidTransition`."""
        start = self.state
        if finish not in MOVES[start]:
            raise InvalidTransition(self.id, start, finish, tuple(map(tell, self.story)))
        self.state = finish
        if not MOVES[finish]:
            self.ended = True
        run = self.run
        if run.watched:
            run.note_move(self, start)
        if (finish is READY or start is READY) and self.step.op.kind == "think":
            change = 1 if finish is READY else -1
            run.ready += change
            if not run.paused:
                records.ready += change
        name, at = NAMES[finish], records.now
        self.cause = cause
        self._moves += (at, name, reason)
        records.moves.append((at, self.id, NAMES[start], name, reason))

    @property
    def story(self) -> tuple[Move, ...]:
        """Its moves so far, the oldest first."""
        return tuple(self._move(i) for i in range(0, len(self._moves), 3))

    @property
    def last_move(self) -> Move:
        """Its last move. Raises `IndexError` before the first."""
        return self._move(len(self._moves) - 3)

    def _move(self, i: int) -> Move:
        at, finish, reason = cast("tuple[float, str, str]", self._moves[i : i + 3])
        start = cast("str", self._moves[i - 2]) if i else NAMES[WAITING]
        return at, self.id, start, finish, reason

    def changes(self, began: float) -> tuple[Change, ...]:
        """Return its moves as reports tell them: by the time that has passed since `began`."""
        flat = cast("tuple[Any, ...]", self._moves)
        return tuple([(flat[i] - began, flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)])

    def shift(self, seconds: float) -> None:
        """Move the times of its story."""
        self._moves = tuple(
            cast("float", number) + seconds if i % 3 == 0 else number for i, number in enumerate(self._moves)
        )


@dataclass(frozen=True, slots=True)
class Blockage:
    """A ready step may not start: a budget is used up for now, a policy holds it, or the user has paused the run."""

    by: Literal["budget", "policy", "pause"]
    since: float
    backlog: Backlog[Node]
    """Where it waits: in the backlog of an account, of its run, or of a worker."""
    key: str
    """In that backlog: its lane for a budget, `Hold.behind` for a policy, nothing for a worker."""
    reason: str = ""


@dataclass(slots=True, eq=False)
class Scope:
    """The names a step can see: the steps of one plan and its later patches, then those of the plans around it."""

    run: Run
    owner: Node | None
    """The step that expands into this; `None` for the first plan of a run."""
    parent: Scope | None
    prefix: str
    """Of the ids of its steps."""
    level: int = 0
    """How many steps that expand, one inside the other, are around it; a flow's own step does not count."""
    open: bool = True
    """More patches may come; until then its steps are kept even if nothing consumes them yet."""
    names: dict[str, Node] = field(default_factory=dict[str, Node])
    output: Node | None = None
    groups: dict[str, Account | None] = field(default_factory=dict[str, "Account | None"])
    """Accounts of the groups that its patches name (`Plan.group`)."""


@dataclass(slots=True, eq=False, init=False)
class Attempt(Figures):
    """One dispatch of a step to a worker. Its slot is held until the worker has answered."""

    node: Node
    worker: WorkerState

    def __init__(
        self, id: int, node: Node, worker: WorkerState, reserved: int, short: str, started: float, priority: int
    ) -> None:
        Figures.__init__(self, id, reserved, short, started, priority)
        self.node = node
        self.worker = worker

    def leave(self) -> None:
        """Be no longer among the live attempts at its step."""
        node = self.node
        if node.attempt is self:
            node.attempt, node.hedge = node.hedge, None
        elif node.hedge is self:
            node.hedge = None


@dataclass(slots=True, eq=False)
class Run:
    """One request on its way to an answer."""

    id: str
    request: Request
    task: Task
    share: Share = field(default_factory=lambda: Share("", 0))
    """Whose part of the slots it takes."""
    rankers: tuple[Policy, ...] = ()
    """Its policies that rank ready steps."""
    placers: tuple[Policy, ...] = ()
    """Its policies that choose workers or hold steps back."""
    reviewers: tuple[Policy, ...] = ()
    """Its policies that look at its news."""
    root: Scope | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    prefix_groups: dict[Hashable, PrefixGroup] = field(default_factory=dict["Hashable", "PrefixGroup"])
    account: Account | None = None
    """Of its budget, if that sets a limit."""
    submitted: float = 0.0
    """When it was submitted."""
    live: int = 0
    """Attempts that are not gone."""
    ready: int = 0
    """Model steps that are ready."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that a policy holds back."""
    forced: Node | None = None
    """A step that starts although a policy holds it, as nothing else of the run is under way."""
    paused: bool = False
    """The user wants nothing more of it to start for now."""
    set_aside: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that were due while it was paused."""
    counting: dict[str, Node] = field(default_factory=dict[str, "Node"])
    """Ready steps of which a worker is counting the prompt, by id."""
    uncounted: set[str] = field(default_factory=set[str])
    """Ids of steps of which no worker could tell the size of the prompt."""
    lengths: dict[Hashable, deque[int]] = field(default_factory=dict["Hashable", "deque[int]"])
    """Of its answers lately, by template (`EndedSteps`)."""
    messages: dict[int, tuple[Message, str]] = field(default_factory=dict[int, "tuple[Message, str]"])
    """Messages of its conversations as texts, by identity (`prefix_groups.py`)."""
    prompts: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Tokens of its prompts that were counted, where a budget limits them."""
    per_byte: float = 0.25
    """Tokens for each byte of a prompt, as workers report them."""
    put: int = 0  # bytes of values that its joins have read, and that were put into what it asks
    wake: float | None = None
    """When a policy wants to review it."""
    meter: Meter = field(default_factory=Meter)
    cancelled: tuple[Cause, str] | None = None
    """Why the user gave it up."""
    broken: Failure | None = None
    """A policy raised."""

    @property
    def over(self) -> bool:
        """Whether its output step has ended; attempts may still have to be stopped."""
        return self.root is not None and self.root.output is not None and self.root.output.ended

    def dissolve(self) -> None:
        """Drop what its records say of one another, so that they go without the garbage collector."""
        for node in self.nodes:
            node.deps = node.dependants = ()
            node.after = node.own_waiters = node.inner = node.seen = node.tally = node.untallied = None
            node.scope.names.clear()
            if node.account is not None:
                node.account.timed.clear()
        for group in self.prefix_groups.values():
            group.nodes.clear()
        while self.nodes:  # one by one: to clear a list of 100,000 holds all threads up
            self.nodes.pop()

    watched: bool = False
    """Policies place its steps or look at its news."""
    going: dict[Node, None] = field(default_factory=dict["Node", None])
    """Its steps that have an attempt under way, of a run that policies watch, in the order in which they began."""

    def note_move(self, node: Node, start: State) -> None:
        """Take note that a step has moved, for policies that ask what is under way."""
        if node.state is State.RUNNING:
            self.going[node] = None
        elif start is State.RUNNING:
            self.going.pop(node, None)
        change = (node.state in UNDER_WAY) - (start in UNDER_WAY)
        if change:
            for dependant in node.dependants:
                dependant.branches_going += change


@dataclass(slots=True, eq=False)
class WorkerState:
    """A worker as the machine knows it. Policies see it too (`core.view.WorkerView`)."""

    name: str
    slots: int
    serves: tuple[Kind, ...]
    up: bool = True
    returning: bool = False
    """It is down and will come back."""
    running: int = 0
    """Attempts on it that are not gone."""
    carried: int = 0
    """Attempts on it when its slots were last counted: they may be more than it now has slots for."""
    models: tuple[str, ...] = ()
    cache_tokens: int | None = None
    block: int | None = None
    reports: int | None = None
    """Tokens: the most between two reports of an attempt that is asked to report; `None`: it may report none."""
    counts_tokens: bool = False
    """It can count the tokens of a prompt."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """By model; under no name that of any other."""
    thinks: set[str | None] = field(default_factory=set["str | None"])
    """Models of which an answer had thoughts, by the name that steps give."""
    load: int = 0
    """Tokens that its attempts may still generate."""
    context: int = 0
    """Tokens of context that they may come to hold; shared ones count once; of runs with policies."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that policies keep for it until it has a free slot."""
    speed: DecodeSpeed = field(default_factory=DecodeSpeed)
    """How fast it is; of runs with policies."""
    listed: int = -1
    """`running` in its entry in the heap of free workers; -1 without an entry."""

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        return self.slots - self.running if self.up else 0

    @property
    def kept(self) -> int:
        """About how many steps wait for it."""
        return sum(map(len, self.held.heaps.values()))

    def pace(self, attempts: int) -> float | None:
        """Return the seconds that a token takes with so many attempts on it."""
        return self.speed.at(attempts)

    def price(self, model: str | None) -> Price | None:
        """Return what a model costs here, if that is known."""
        if not self.prices:
            return None
        return self.prices.get(model or "") or self.prices.get("")

    def could_take(self, step: StepView) -> bool:
        """Return whether it is up and serves a step's kind and model, free slot or not. One without slots is going."""
        return self.up and self.slots > 0 and self.in_lane(lane_of(step.plan.op))

    def takes(self, step: StepView) -> bool:
        """Return whether it serves a step's kind and model, and has a free slot."""
        return self.free > 0 and self.in_lane(lane_of(step.plan.op))

    def in_lane(self, lane: str) -> bool:
        """Return whether it serves a lane."""
        kind, _, model = lane.partition(" ")
        return kind in self.serves and (not model or not self.models or model in self.models)


@dataclass(slots=True, eq=False)
class Account:
    """Running totals against one budget."""

    budget: Budget
    owner: str
    """Whose budget it is, for messages."""
    parent: Account | None
    deadline: float | None = None
    level: int = 0
    """Of the scope that its steps stand in."""
    prompts: bool = False
    """Whether it, or one around it, limits what prompts count against."""
    counted: bool = False
    """Attempts were charged by their reports: it may be passed by the last report of each."""
    lengths: bool = False
    """Whether it, or one around it, limits what generated tokens count against."""
    prompt: int = 0
    """Prompt tokens, of live attempts too."""
    margin: int = 0
    """By how many tokens the prompts of live attempts may be more."""
    estimates: int = 0
    """Live attempts of which the prompt is an estimate."""
    tokens: int = 0
    """Generated tokens, of live attempts as far as they were reported."""
    thinking: bool = False
    """Whether it, or one around it, limits thoughts: so many tokens of them there were, and live attempts may have."""
    thoughts: int = 0
    reserved_thoughts: int = 0
    reserved: int = 0
    """Tokens that live attempts are likely to report yet, or may yet generate (`budgets._held`)."""
    overrun: int = 0
    """Tokens that workers generated beyond their grants."""
    attempts: int = 0
    running: int = 0
    cost: float = 0.0
    reserved_cost: float = 0.0
    """Of the tokens that are reserved."""
    steps: int = 0
    turns: dict[Node, int] = field(default_factory=dict["Node", int])
    """Model calls that lead to each of its steps, that one included, with a limit of turns."""
    waited: dict[Node, int] = field(default_factory=dict["Node", int])
    """Those that a flow had waited for under this account when it made the step, if it had for any."""
    by_default: bool = False
    """Nobody limited the run: its tokens are those of the setting `bound`."""
    changed: bool = False
    """The user has changed its limits: more may have been used, or may be running, than they allow."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps, by lane, that wait for something under this account to end."""
    timed: list[Node] = field(default_factory=list["Node"])
    """The steps that its deadline concerns, in the order they came; empty without one."""

    def chain(self) -> list[Account]:
        """Return this account and those around it, innermost first."""
        accounts: list[Account] = [self]
        around = self.parent
        while around is not None:
            accounts.append(around)
            around = around.parent
        return accounts


@dataclass(slots=True, eq=False)
class PrefixGroup:
    """Steps of a run that continue the same context or begin with the same prompt (calls: that call the same tool)."""

    nodes: list[Node] = field(default_factory=list["Node"])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that were dispatched, by worker, in order of the first."""
    live: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that are not gone, by worker."""
    finished: list[AttemptEnd] = field(default_factory=list[AttemptEnd])
    """Attempts that ended in a value, the first first."""
    shared: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of the shared context, by worker with a live attempt."""
    content: tuple[Hashable, bytes] | None = None
    """That context as the prefix index knows it, once it was asked for."""
    own_from: int = 0
    """Of think steps that continue none: where the parts of their prompts begin that are a step's alone."""
    size: int | None = None
    """About how many tokens the prompts of these have before that, once it was asked for."""


@dataclass(slots=True, eq=False)
class Records:
    """All records of a machine, and its answer to the event being handled. Shared by the layers of the machine."""

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    """The steps of these runs, by id."""
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    """Attempts that are not gone."""
    workers: dict[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    ended: EndedSteps = field(default_factory=EndedSteps)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    """Who has what cached, of all runs that have policies."""
    last_attempt: int = 0
    ready: int = 0
    """Model steps that are ready, of runs that are not paused."""
    lost: str = ""
    """Which worker went away last, and why, as far as one has said so."""
    thinking: int = 0
    """Attempts at model steps."""
    waiting: int = 0
    """Runs of which nothing is under way, though they are not paused."""
    now: float = 0.0
    """Time of the event being handled."""
    actions: list[Action] = field(default_factory=list[Action])
    moves: list[Move] = field(default_factory=list[Move])
    """Moves of steps in the last `handle`, for watchers."""
