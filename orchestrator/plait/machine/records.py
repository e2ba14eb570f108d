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
from ..core.result import Failure, Usage
from ..core.states import MOVES, NAMES, READY, UNDER_WAY, WAITING, Move, State, tell
from ..core.task import Task
from ..core.view import AttemptEnd, Branch, StepView
from .backlog import Backlog
from .run_statistics import (
    Checkpoint,
    DecodeSpeed,
    EndedSteps,
    Figures,
    HeldBack,
    Meter,
    Outcome,
    PathTokens,
    Share,
    TemplateKeys,
    lane_of,
    template_keys,
)
from .shared_sequence import Series, TalkHistory


@dataclass(slots=True, eq=False)
class QueuePlace:
    """Where a step stands among those that are ready, and why it may not start."""

    priority: int
    """Sum of its request's and its step's priority; the smallest goes first."""
    lane: str
    """Name of the queue that it waits in (`lane_of`)."""
    ticket: int = 0
    """Its arrival number in the ready queue, kept over retries; 0 before it was ready."""
    turn: int = 0
    """The ticket that orders it against steps of other orders (`wait_queues.py`): its own, or one that it swapped."""
    rank: tuple[float, ...] = ()
    """Rank by its policies, the smallest first; empty without a policy that ranks."""
    blocked: Blockage | None = None
    """Why it is ready and may not start. Still set while it is asked about again."""
    prefix_group: PrefixGroup | None = None
    """The steps that share its context, in a run with policies."""


@dataclass(slots=True, eq=False)
class JoinState:
    """What a join knows of its branches."""

    waits_for_all: bool = False
    """It can only close when its last branch has ended, unless one of them fails."""
    released: bool = False
    """It has its verdict, expands, and wants its branches no longer."""
    done: int = 0
    """Branches that ended in a value."""
    failed: int = 0
    seen: list[Branch] | None = None
    """Its branches as its merge saw them last."""
    tally: Tally | None = None
    """What its merge has counted, once that was asked for."""
    untallied: list[Node] | None = None
    """The branches that have ended since then."""


# Most steps are not joins. They share this one, so that a reader need not ask for the kind of a step. Nothing writes
# to it.
NO_JOIN = JoinState()


@dataclass(slots=True, eq=False)
class StepAttempts:
    """The attempts at a step: those that are live, and what is left of the others."""

    live: Attempt | None = None
    """The live attempt; of two the older one."""
    hedge: Attempt | None = None
    """The second live attempt, of a step that is hedged."""
    hedged: bool = False
    """It has had its one hedge, which may be over."""
    generation: int = 0
    """Id of the attempt whose text the planner reads; patches to any other are late."""
    count: int = 0
    lost: int = 0
    """Attempts that ended because the worker was lost."""
    interrupted: int = 0
    """Those of them where our own process had ended."""
    lost_on: tuple[str, ...] = ()
    """Workers that went away while they ran the step, without immediate repetitions."""
    checkpoint: Checkpoint | None = None
    """The beginning of its text that a lost attempt had generated; the next attempt resumes from it."""
    ran_on: str | None = None
    """The worker of the last attempt; in the end, of the one that gave its value."""
    spent: Usage | None = None
    """Usage of all its attempts that are gone."""


@dataclass(slots=True, eq=False, init=False)
class Node:
    """A step in the plan of a run: its place in the graph, and records of what happens to it.

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
    state: State
    ended: bool
    """Whether `state` is one that a step does not leave."""
    _moves: tuple[float | str, ...]
    """Its moves so far, three entries each: when, into which state, why. One flat tuple of atoms: nothing for the
    garbage collector to follow."""

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
    needs_under_way: int
    """Needs that are under way; counted in runs with policies."""
    consumers: int
    """Dependants that have not ended and still want its value, and one more while its scope keeps it."""
    inner: Scope | None
    """The scope of the steps that it expands into."""
    sent: Series[Text | Tokens] | None
    """Its whole prompt as text and tokens, once something has asked for it (`assemble.prompt`)."""
    talk: TalkHistory | None
    """The conversation that its turn ended, once a later turn continued it."""

    place: QueuePlace
    join: JoinState
    attempts: StepAttempts
    outcome: Outcome
    path_tokens: PathTokens

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
        self.state = WAITING
        self.ended = self.after_own = False
        self.deps = self.dependants = self._moves = ()
        self.after = self.own_waiters = self.inner = self.sent = self.talk = None
        self.pending = self.needs_under_way = self.consumers = 0
        self.place = QueuePlace(priority, lane)
        self.join = NO_JOIN if merge is None else JoinState()
        self.attempts = StepAttempts()
        self.outcome = Outcome()
        self.path_tokens = PathTokens()

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
        if run.policies.watch:
            run.note_move(self, start)
        if (finish is READY or start is READY) and self.step.op.kind == "think":
            change = 1 if finish is READY else -1
            run.ready += change
            if not run.paused:
                records.ready += change
        # Names, not states: the tuple holds atoms only, which the garbage collector does not track.
        name, at = NAMES[finish], records.now
        self.outcome.cause = cause
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
    """In that backlog: its lane for a budget, `Defer.behind` for a policy, nothing for a worker."""
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
        if node.attempts.live is self:
            node.attempts.live, node.attempts.hedge = node.attempts.hedge, None
        elif node.attempts.hedge is self:
            node.attempts.hedge = None


@dataclass(slots=True, eq=False)
class RunPolicies:
    """The policies of a run by what they do. Most runs have none, and ask none."""

    rankers: tuple[Policy, ...] = ()
    """Those that rank ready steps."""
    placers: tuple[Policy, ...] = ()
    """Those that choose workers or hold steps back."""
    reviewers: tuple[Policy, ...] = ()
    """Those that look at its events."""
    watch: bool = False
    """Some place its steps or look at its events."""


@dataclass(slots=True, eq=False)
class PromptSizes:
    """What a run knows of the sizes of its prompts, where a budget limits them."""

    counting: dict[str, Node] = field(default_factory=dict[str, "Node"])
    """Ready steps whose prompt a worker is counting, by id."""
    uncounted: set[str] = field(default_factory=set[str])
    """Ids of steps whose prompt size is unknown to every worker."""
    known: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Tokens of its prompts that were counted."""
    tokens_per_byte: float = 0.25
    """Of a prompt, as workers report them."""


@dataclass(slots=True, eq=False)
class Run:
    """One request on its way to an answer."""

    id: str
    request: Request
    task: Task
    share: Share = field(default_factory=lambda: Share("", 0))
    """Whose part of the slots it takes."""
    policies: RunPolicies = field(default_factory=RunPolicies)
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
    lengths: dict[Hashable, deque[int]] = field(default_factory=dict["Hashable", "deque[int]"])
    """Of its answers lately, by template (`EndedSteps`)."""
    messages: dict[int, tuple[Message, str]] = field(default_factory=dict[int, "tuple[Message, str]"])
    """Messages of its conversations as texts, by identity (`prefix_groups.py`)."""
    prompt_sizes: PromptSizes = field(default_factory=PromptSizes)
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
            node.after = node.own_waiters = node.inner = None
            if node.merge is not None:
                node.join = NO_JOIN
            node.scope.names.clear()
            if node.account is not None:
                node.account.timed.clear()
        for group in self.prefix_groups.values():
            group.nodes.clear()
        while self.nodes:  # one by one: to clear a list of 100,000 holds all threads up
            self.nodes.pop()

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
                dependant.needs_under_way += change


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
    tokens: int = 0
    """Generated tokens, of live attempts as far as they were reported."""
    thinking: bool = False
    """Whether it, or one around it, limits thoughts: so many tokens of them there were, and live attempts may have."""
    thoughts: int = 0
    held_back: HeldBack = field(default_factory=HeldBack)
    """Reserved for live attempts."""
    overrun: int = 0
    """Tokens that workers generated beyond their grants."""
    attempts: int = 0
    running: int = 0
    cost: float = 0.0
    steps: int = 0
    turns: dict[Node, int] = field(default_factory=dict["Node", int])
    """Model calls that lead to each of its steps, that one included, with a limit of turns."""
    waited: dict[Node, int] = field(default_factory=dict["Node", int])
    """Those that a flow had waited for under this account when it made the step, if it had for any."""
    by_default: bool = False
    """Nobody limited the run: its tokens are those of the setting `default_token_limit`."""
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
