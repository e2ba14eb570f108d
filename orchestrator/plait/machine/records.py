"""The records of a machine: runs, scopes, steps, attempts, workers, accounts. Plain data with a few one-line queries.

Only the modules of this folder write to them. Other code reads them, or sees a step through `StepView`. Nearly every
rule about them is in `tests/machine/invariants.py`.
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
from ..core.record import Change
from ..core.request import Request
from ..core.result import Failure, Price, Usage
from ..core.states import MOVES, NAMES, READY, UNDER_WAY, WAITING, Move, State, describe_move
from ..core.task import Task
from ..core.view import Branch, StepView
from .backlog import Backlog, Series, TalkHistory
from .run_statistics import (
    Checkpoint,
    DecodeSpeed,
    EndedSteps,
    Figures,
    HeldBack,
    Meter,
    Outcome,
    PathTokens,
    ProgramRecord,
    Share,
    TemplateKeys,
    lane_of,
    template_keys,
)


@dataclass(slots=True, eq=False)
class QueuePlace:
    """The position of a step among ready steps, and what blocks it."""

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
    """What blocks it while it is ready. Still set while it is checked again."""
    prefix_group: PrefixGroup | None = None
    """The steps that share its context, in a run with policies."""


@dataclass(slots=True, eq=False)
class JoinState:
    """The state of a join's branches."""

    waits_for_all: bool = False
    """It can only close when its last branch has ended, unless a branch fails."""
    released: bool = False
    """It has its result, expands, and no longer needs its branches."""
    done: int = 0
    """Branches that ended in a value."""
    failed: int = 0
    seen: list[Branch] | None = None
    """Its branches as its merge saw them last."""
    tally: Tally | None = None
    """The running count of its merge, once it was first read."""
    untallied: list[Node] | None = None
    """The branches that have ended since the last read."""


# Most steps are not joins. They share this one, so that readers need not check the kind of a step. Nothing writes to
# it.
NO_JOIN = JoinState()


@dataclass(slots=True, eq=False)
class StepAttempts:
    """The attempts at a step: the live ones, and the remains of the others."""

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
    """Lost attempts that plait itself interrupted (`errors.Interrupted`)."""
    lost_on: tuple[str, ...] = ()
    """Workers that went away while they ran the step, without immediate repetitions."""
    checkpoint: Checkpoint | None = None
    """The beginning of its text that a lost attempt had generated; the next attempt resumes from it."""
    ran_on: str | None = None
    """The worker of the last attempt; after the end, the worker that returned the value."""
    spent: Usage | None = None
    """Usage of all its attempts that have ended."""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A step in the plan of a run: its place in the graph, and the records of its execution.

    The counts obey two rules. `pending` is the number of needs that have not ended; at 0 the step is ready. `consumers`
    is the number of steps that still need its value; at 0 the step is cancelled.
    """

    id: str
    run: Run
    step: Step
    scope: Scope
    account: Account | None
    """Innermost budget account over it; `None` without any budget."""
    merge: Merge | None
    """Of a join: its merge."""
    place: QueuePlace
    state: State = WAITING
    ended: bool = False
    """Whether `state` is final."""
    _moves: tuple[float | str, ...] = ()
    """Its moves so far, three entries each: when, into which state, why. One flat tuple of atoms: nothing for the
    garbage collector to follow."""

    deps: tuple[Node, ...] = ()
    """Steps whose values it needs, and the one whose context it continues, unless that is an expander around it."""
    after: Node | None = None
    """The step whose context it continues."""
    after_own: bool = False
    """It continues the text that an expander around it generated itself, not the value of that expansion."""
    dependants: list[Node] | tuple[Node, ...] = ()
    """Steps that have it among their `deps`; a list once there is one."""
    own_waiters: list[Node] | None = None
    """Steps of its own expansion that wait for the text that it generates itself (`after_own`)."""
    pending: int = 0
    """Needs that have not ended (for a join: branches)."""
    needs_under_way: int = 0
    """Needs that are active; counted in runs with policies."""
    consumers: int = 0
    """Dependants that have not ended and still need its value, and one more while its scope keeps it."""
    inner: Scope | None = None
    """The scope of the steps that it expands into."""
    sent: Series[Text | Tokens] | None = None
    """Its whole prompt as text and tokens, once it was first read (`action_builder.prompt`)."""
    talk: TalkHistory | None = None
    """The conversation that its turn ended, once a later turn continued it."""

    join: JoinState = field(init=False)
    attempts: StepAttempts = field(default_factory=StepAttempts)
    outcome: Outcome = field(default_factory=Outcome)
    path_tokens: PathTokens = field(default_factory=PathTokens)

    def __post_init__(self) -> None:
        self.join = NO_JOIN if self.merge is None else JoinState()

    @property
    def template_keys(self) -> TemplateKeys:
        """The keys by which it is compared with ended steps."""
        return template_keys(self.step, self.run.request.planner.name)

    def __repr__(self) -> str:
        return f"<{self.id} {self.state.value}>"  # records refer to one another: a repr of all fields would not end

    def move(self, finish: State, records: Records, reason: str = "", cause: Cause | None = None) -> None:
        """Move to a state, noted in the story and for watchers, or raise `InvalidTransition`."""
        start = self.state
        if finish not in MOVES[start]:
            raise InvalidTransition(self.id, start, finish, tuple(map(describe_move, self.story)))
        self.state = finish
        if not MOVES[finish]:
            self.ended = True
        run = self.run
        # Only for policies: runs without any pay nothing for the bookkeeping.
        if run.policies.watch:
            run.note_move(self, start)
        if (finish is READY or start is READY) and self.step.op.kind == "think":
            change = 1 if finish is READY else -1
            run.ready += change
            if not run.paused:
                records.ready += change
        # Names, not states: a tuple of atoms is not tracked by the garbage collector.
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
        """Return its moves for reports, with times in seconds since `began`."""
        flat: tuple[Any, ...] = self._moves
        return tuple([(flat[i] - began, flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)])

    def shift(self, seconds: float) -> None:
        """Move the times of its story."""
        self._moves = tuple(
            cast("float", number) + seconds if i % 3 == 0 else number for i, number in enumerate(self._moves)
        )


@dataclass(frozen=True, slots=True)
class Blockage:
    """What blocks a ready step: a budget that is used up for now, a policy that holds it, or a paused run."""

    by: Literal["budget", "policy", "pause"]
    since: float
    backlog: Backlog[Node]
    """Where it waits: in the backlog of an account, of its run, or of a worker."""
    key: str
    """Its key in that backlog: its lane for a budget, `Defer.behind` for a policy, empty for a worker."""
    reason: str = ""


@dataclass(slots=True, eq=False)
class Scope:
    """The names a step can see: the steps of one plan and its later patches, then those of the plans around it."""

    run: Run
    owner: Node | None
    """The step that expands into this; `None` for the first plan of a run."""
    parent: Scope | None
    prefix: str
    """Prefix of the ids of its steps."""
    level: int = 0
    """Number of nested expanding steps around it; a flow's own step does not count."""
    open: bool = True
    """More patches may come; until then its steps are kept even if nothing consumes them yet."""
    names: dict[str, Node] = field(default_factory=dict[str, Node])
    output: Node | None = None
    groups: dict[str, Account | None] = field(default_factory=dict[str, "Account | None"])
    """Accounts of the groups that its patches name (`Plan.group`)."""


@dataclass(slots=True, eq=False)
class Attempt(Figures):
    """One dispatch of a step to a worker. Its slot is held until the worker has answered."""

    node: Node = field(kw_only=True)
    worker: WorkerState = field(kw_only=True)

    def leave(self) -> None:
        """Remove it from the live attempts at its step."""
        node = self.node
        if node.attempts.live is self:
            node.attempts.live, node.attempts.hedge = node.attempts.hedge, None
        elif node.attempts.hedge is self:
            node.attempts.hedge = None


@dataclass(slots=True, eq=False)
class RunPolicies:
    """The policies of a run by their methods. Most runs have none."""

    rankers: tuple[Policy, ...] = ()
    """Policies that rank ready steps."""
    placers: tuple[Policy, ...] = ()
    """Policies that choose workers or hold steps back."""
    reviewers: tuple[Policy, ...] = ()
    """Policies that review its events."""
    admitters: tuple[Policy, ...] = ()
    """Policies that admit it to an engine whose cache is short."""
    program: ProgramRecord | None = None
    """Its contexts, once it has some and policies admit it."""
    watch: bool = False
    """Whether any policy places its steps or reviews its events."""
    needs_stream: bool = False
    """Whether a reviewer reads text while it is generated."""
    needs_counts: bool = False
    """Whether a reviewer reads how many tokens were generated meanwhile."""


@dataclass(slots=True, eq=False)
class PromptSizes:
    """The known sizes of a run's prompts, if a budget limits them."""

    counting: dict[str, Node] = field(default_factory=dict[str, "Node"])
    """Ready steps whose prompt a worker is counting, by id."""
    uncounted: set[str] = field(default_factory=set[str])
    """Ids of steps whose prompt size is unknown to every worker."""
    known: dict[Hashable, int] = field(default_factory=dict["Hashable", int])
    """Tokens of its counted prompts."""
    tokens_per_byte: float = 0.25
    """Tokens per byte of a prompt, from the reports of workers."""


@dataclass(slots=True, eq=False)
class Run:
    """The state of one request until its answer."""

    id: str
    request: Request
    task: Task
    share: Share = field(init=False)
    """The share that its attempts are charged to."""
    policies: RunPolicies = field(default_factory=RunPolicies)
    root: Scope | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    prefix_groups: dict[Hashable, PrefixGroup] = field(default_factory=dict["Hashable", "PrefixGroup"])
    account: Account | None = None
    """The account of its budget, if that sets a limit."""
    submitted: float = 0.0
    """When it was submitted."""
    live: int = 0
    """Attempts that have not ended."""
    ready: int = 0
    """Model steps that are ready."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that a policy holds back."""
    forced: Node | None = None
    """A step that starts although a policy holds it, because nothing else of the run is active."""
    paused: bool = False
    """The user has paused it: no step starts."""
    set_aside: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that were due while it was paused."""
    lengths: dict[Hashable, deque[int]] = field(default_factory=dict["Hashable", "deque[int]"])
    """Lengths of its latest answers in tokens, by template (`EndedSteps`)."""
    messages: dict[int, tuple[Message, str]] = field(default_factory=dict[int, "tuple[Message, str]"])
    """Messages of its conversations as texts, by identity (`prefix_groups.py`)."""
    prompt_sizes: PromptSizes = field(default_factory=PromptSizes)
    put: int = 0
    """Bytes of values that its joins have read and that were inserted into its prompts and arguments."""
    wake: float | None = None
    """Time of the next review by a policy."""
    meter: Meter = field(default_factory=Meter)
    cancelled: tuple[Cause, str] | None = None
    """Cause and message of its cancellation by the user."""
    broken: Failure | None = None
    """The failure of a policy that raised."""

    @property
    def over(self) -> bool:
        """Whether its output step has ended; attempts may still have to be stopped."""
        return self.root is not None and self.root.output is not None and self.root.output.ended

    def dissolve(self) -> None:
        """Clear the references between its records, so that they are freed without the garbage collector."""
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
        while self.nodes:  # one by one: clearing a list of 100,000 would block all threads
            self.nodes.pop()

    going: dict[Node, None] = field(default_factory=dict["Node", None])
    """Its running steps in the order of their start, kept if policies watch the run."""

    def note_move(self, node: Node, start: State) -> None:
        """Record a move of a step, for policies that read which steps are active."""
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
    """Attempts on it that have not ended."""
    elsewhere: int = 0
    """Attempts of other processes on it (`Config.share_load`)."""
    carried: int = 0
    """Attempts on it when it last reported its slots; they may exceed the new number of slots."""
    models: tuple[str, ...] = ()
    cache_tokens: int | None = None
    block: int | None = None
    reports: int | None = None
    """Maximum tokens between two reports of an attempt with reports; `None`: it may not report."""
    counts_tokens: bool = False
    """It can count the tokens of a prompt."""
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """Prices by model; the empty name holds the default."""
    thinks: set[str | None] = field(default_factory=set["str | None"])
    """Models with an answer that had thoughts, by the name in steps."""
    load: int = 0
    """Tokens that its attempts may still generate."""
    context: int = 0
    """Tokens of context that its attempts may come to hold; shared ones count once. Kept for runs with policies."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps that policies keep for it until it has a free slot."""
    speed: DecodeSpeed = field(default_factory=DecodeSpeed)
    """Its decoding speed, from runs with policies."""
    listed: int = -1
    """`busy` in its entry in the heap of free workers; -1 without an entry."""

    @property
    def free(self) -> int:
        """Slots that can take a step now."""
        return self.slots - self.running if self.up else 0

    @property
    def busy(self) -> int:
        """Attempts on it, with those of other processes."""
        return self.running + self.elsewhere

    @property
    def kept(self) -> int:
        """Approximate number of steps that wait for it."""
        return sum(map(len, self.held.heaps.values()))

    def pace(self, attempts: int) -> float | None:
        """Return the seconds per token with this number of attempts on it, or `None` if unknown."""
        return self.speed.seconds_per_token(attempts)

    def price(self, model: str | None) -> Price | None:
        """Return the price of a model on this worker, or `None` if it is unknown."""
        if not self.prices:
            return None
        return self.prices.get(model or "") or self.prices.get("")

    def could_take(self, step: StepView) -> bool:
        """Return whether it is up and serves a step's kind and model, even without a free slot."""
        # A worker without any slots is draining: it takes no more steps.
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
    around: tuple[Account, ...] = ()
    """The accounts around it, the innermost first: what is charged to it is charged to them."""
    deadline: float | None = None
    level: int = 0
    """Level of the scope of its steps."""
    prompts: bool = False
    """Whether it, or one around it, has a limit that prompts count against."""
    counted: bool = False
    """Attempts were charged by their reports: the last report of each may exceed it."""
    lengths: bool = False
    """Whether it, or one around it, has a limit that generated tokens count against."""
    calls: bool = False
    """Whether it, or one around it, has a limit that may keep a call from starting: a deadline among others."""
    prompt: int = 0
    """Prompt tokens, live attempts included."""
    tokens: int = 0
    """Generated tokens, with the reported tokens of live attempts."""
    thinking: bool = False
    """Whether it, or one around it, limits thoughts."""
    thoughts: int = 0
    """Tokens of thoughts of ended attempts."""
    held_back: HeldBack = field(default_factory=HeldBack)
    """Reserved for live attempts."""
    overrun: int = 0
    """Tokens that workers generated beyond their grants."""
    attempts: int = 0
    running: int = 0
    cost: float = 0.0
    steps: int = 0
    turns: dict[Node, int] = field(default_factory=dict["Node", int])
    """Model calls on the longest chain that ends with each of its steps; kept with a limit of turns."""
    waited: dict[Node, int] = field(default_factory=dict["Node", int])
    """Model calls that a flow had waited for under this account when it made the step, if any."""
    by_default: bool = False
    """The request sets no limit: its tokens are limited by the setting `default_token_limit`."""
    changed: bool = False
    """The user has changed its limits, so that past use or running attempts may exceed them."""
    held: Backlog[Node] = field(default_factory=Backlog[Node])
    """Ready steps, by lane, that wait for something under this account to end."""
    timed: list[Node] = field(default_factory=list["Node"])
    """The steps under its deadline, in order of arrival; empty without a deadline."""


@dataclass(slots=True, eq=False)
class PrefixGroup:
    """Steps of a run that continue the same context or begin with the same prompt (calls: of the same tool)."""

    nodes: list[Node] = field(default_factory=list["Node"])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that were dispatched, by worker, in order of the first."""
    live: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts that have not ended, by worker."""
    shared: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of the shared context, by worker with a live attempt."""
    content: tuple[Hashable, bytes] | None = None
    """The prefix-index key of that context, once it was first read."""
    own_from: int = 0
    """For think steps that continue none: index of the first prompt part that belongs to a step alone."""
    size: int | None = None
    """Approximate tokens of their prompts before that part, once it was first read."""


@dataclass(slots=True, eq=False)
class Records:
    """All records of a machine, and its answer to the event being handled. Shared by the layers of the machine."""

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    """The steps of these runs, by id."""
    attempts: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    """Attempts that have not ended."""
    workers: dict[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    ended: EndedSteps = field(default_factory=EndedSteps)
    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    """The cached prefixes of each worker, for all runs with policies."""
    last_attempt: int = 0
    ready: int = 0
    """Model steps that are ready, of runs that are not paused."""
    lost: str = ""
    """The worker that went away last with a reason, and that reason."""
    thinking: int = 0
    """Attempts at model steps."""
    waiting: int = 0
    """Runs without an attempt that are not paused."""
    now: float = 0.0
    """Time of the event being handled."""
    actions: list[Action] = field(default_factory=list[Action])
    moves: list[Move] = field(default_factory=list[Move])
    """Moves of steps in the last `handle`, for watchers."""
