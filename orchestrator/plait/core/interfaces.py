"""The interfaces that plugins implement: Planner, Policy, Merge, Task, Worker.

A plugin's class is its own configuration: a frozen pydantic model whose fields are its options, so flags, config files
and the journal's header come for free. This file fixes what each may see and say; it knows no implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

from pydantic import Field, JsonValue, SkipValidation

from .call_config import CallConfig, WithCallConfigs
from .declarations import PluginModel, TokenCount
from .errors import PlannerError, PluginError, UsageError
from .events import CacheUpdate, Event, Job
from .ops import Kind, ModelCall, Plugin
from .plan import Plan, Step
from .request import Request
from .result import Failure, Price, Result
from .task import Task
from .tools.tool import ToolSpec
from .values import Frozen
from .view import Branch, StepView, View, WorkerView
from .vocabulary import Count

MOST_STEPS = 100_000
"""Steps that a planner's options may ask for at once, unless the run's budget says more: they are built in memory."""


class PluginSource(Protocol):
    """What makes plugins of any kind by name."""

    def create(self, kind: str, spec: Plugin) -> object:
        """Return a plugin. Raises `PluginError` for an unknown one, or one of another kind."""
        ...


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """The context of a run that a planner receives."""

    request: Request
    task: Task
    tools: tuple[ToolSpec, ...] = ()
    plugins: PluginSource | None = field(default=None, compare=False, repr=False)
    kept: dict[str, object] = field(default_factory=dict[str, object], compare=False, repr=False)
    """What readers and flows (`Context.keep`) of a run keep for one another, by name. Not written down: a resumed run
    begins empty; readers and flows that run again keep it again."""

    def plugin(self, kind: str, spec: Plugin) -> object:
        """Return a plugin of any kind by its name. Raises `PluginError` for an unknown one."""
        if self.plugins is None:
            raise PluginError(f"{kind} {spec.name!r} cannot be looked up: this brief was made without plugins")
        return self.plugins.create(kind, spec)


class Reader(Protocol):
    """A sans-IO parser of one expanding step. Every attempt gets a new one."""

    def feed(self, delta: str) -> Sequence[Plan]:
        """Take the next piece of text, of any length, and return the patches that are complete now."""
        ...

    def close(self, result: Result) -> Plan | None:
        """Take the step's result and return the last patch, or `None` if the step keeps its own value."""
        ...


class JoinReader(Reader, Protocol):
    """A reader of a join that wants to see the branches, with their log-probabilities and texts, and not only what the
    merge made of them."""

    def merged(self, result: Result, branches: Sequence[Branch]) -> Plan | None:
        """Take a join's result and its branches, in the place of `close`."""
        ...


class Planner(WithCallConfigs):
    """Turns a request into plans and patches. It runs outside the machine: what it says is journalled, so replay never
    calls it. It may raise anything; that fails the run (`start`) or the step (`reader`) and nothing else."""

    answer_calls: ClassVar[tuple[str, ...]] = ("answer",)
    """Names of its prompts that write the answer: what a request's `generation` is laid over."""
    pieces: ClassVar[bool] = False
    """These prompts write pieces of the answer, so the token limit of the answer does not apply to them."""

    def start(self, brief: PlanningContext) -> Plan:
        """Return the first plan, whose output is the run's answer."""
        raise NotImplementedError

    def size(self) -> int:
        """Return about how many steps the options ask for at once; by default the option `n`, where there is one.

        A run is refused before `start` if that is more than `MOST_STEPS` and more than its budget's `steps`."""
        n: object = self.__dict__.get("n")
        return n if isinstance(n, int) else 1

    @classmethod
    def resolve_options(cls, spec: Plugin, request: Request) -> Plugin:
        """Return the planner of a request with options that are known elsewhere, such as learned ones."""
        return spec

    @classmethod
    def says_answer(cls) -> tuple[str, ...]:
        """Return the names of the prompts that write the answer, as far as there are prompts of these names."""
        fields = cls.model_fields
        return tuple(
            name for name in cls.answer_calls if name in fields and isinstance(fields[name].default, CallConfig)
        )

    def reader(self, step: Step, brief: PlanningContext) -> Reader:
        """Return a fresh reader for a step that expands."""
        raise PlannerError(
            f"{type(self).__name__} planned {step.name!r} (role {step.role!r}) to expand but has no reader for it. A "
            "run that another version of plait began may have no roles: submit it again"
        )


def demand_size(planner: Planner, brief: PlanningContext) -> None:
    """Raise `UsageError` if a planner's options ask for too many steps, before it makes them."""
    asked, limit = planner.size(), max(MOST_STEPS, brief.request.budget.steps or 0)
    if asked > limit:
        option = f" (n={asked})" if getattr(planner, "n", None) == asked else ""
        raise UsageError(
            f"{type(planner).__name__} asks for {asked:,} steps{option} and {limit:,} are the most: ask for fewer, or "
            "allow more with a budget's `steps`"
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """A policy's order to give a step up, with the reason that people will read."""

    step: str
    reason: str
    merged_into: str | None = None
    """Id of the branch that replaces it, since both would give the same answer: votes count it with that branch."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A policy's choice of a worker, with the reason that people will read in `Dispatch.reason`."""

    worker: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """A policy's wish that a step which could start waits in our queue. It is reconsidered when a step of its
    run has ended or an attempt has reported its first tokens, and starts all the same when no step of its run is
    running any more.

    One that waits for a `worker` is reconsidered when that worker has given a slot back, whichever run had it, or
    has been lost. If that worker runs nothing, it is an ordinary hold."""

    reason: str
    behind: str = ""
    """Name of the queue in which it waits, such as the join's id. Of the steps behind one name the next is considered
    only when the one before it was not held again, so that thousands that wait cost little."""
    worker: str = ""
    """The busy worker that it waits for."""
    until: float | None = None
    """Of `Policy.admit`: the time at which it is checked again in any case, so that it may wait while no worker that
    could take the step runs anything."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """A policy's wish for a second attempt at a running step, on another worker and from the tokens generated so far.
    The first result wins and the other attempt is stopped. Done at most once a step, only for a think step or a call
    without side effects (a streaming step that expands excepted, whose reader follows one text), only where a worker
    has a free slot and no budget has to be cut; else the wish is void, and the policy may ask again later."""

    step: str
    reason: str
    worker: str | None = None
    """Name of the worker; by default the least loaded of the others."""


@dataclass(frozen=True, slots=True)
class ReviewAt:
    """A policy's wish to review its run at a time (seconds, on the clock of `View.now`), whatever happens: with a
    `Tick`. Only the earliest wish of a run counts, and a millisecond from now is the soonest."""

    at: float


class Policy(PluginModel):
    """Orders, places, prunes and hedges. It runs inside the machine and must be pure: a function of its arguments and
    options alone. A policy overrides only the methods it has an opinion on.

    Several policies of one run combine in their order. The rank of the next policy breaks ties of the one before. A
    step that any policy defers waits; otherwise the first policy that names a worker with room places it. The wishes of
    all reviews are fulfilled.
    """

    needs_stream: ClassVar[bool] = False
    """Whether it reads text while it is written. Model calls of its run then stream unless they forbid it."""
    needs_counts: ClassVar[bool] = False
    """Whether it reads token counts of running model calls, which are then reported (`Job.report`); a hedge then
    continues from what has been reported. By default a worker may report them as seldom as every 256 tokens."""

    def rank(self, step: StepView, view: View) -> tuple[float, ...]:
        """Return the key of a step that has just become ready; smaller runs first. Asked once a time."""
        return ()

    def place(self, step: StepView, view: View) -> str | Pin | Defer | None:
        """Return a worker with a free slot, a hold, or `None` for no opinion. Asked when the step could start."""
        return None

    def admit(self, step: StepView, worker: WorkerView, view: View) -> str | Pin | Defer | None:
        """Return another worker with a free slot, a hold, or `None` to let a step start on the worker it would go to.
        Asked for a step of a program (`View.program`) only if the programs on that worker may outgrow its cache.
        Held steps are checked again when an attempt ends, the program that came first first. While no worker that could
        take the step runs anything, only a hold with a time counts (`Defer.until`)."""
        return None

    def first_look(self) -> float | None:
        """Return after how many seconds of a run to review it, with a `Tick`, whatever has happened; `None` if only
        news matter."""
        return None

    def review(self, event: Event, view: View) -> Sequence[Stop | Hedge | ReviewAt]:
        """Return the policy's actions after one event: `Progressed`, `Succeeded` or `Failed` of `view.subject`, or a
        `Tick` that a policy of the run `view.run` asked for, which has no subject."""
        return ()


class Verdict(Frozen):
    """What a merge decided."""

    value: SkipValidation[JsonValue]
    """Checked when the join takes it, and not copied: it may contain values of branches as they are."""
    why: str
    """Counts, margin, who was left out: one line that a person can read. No program reads it."""
    data: JsonValue = None
    """The same for programs, where some want it: scores, counts, settings. The answer has it as `data`."""
    winner: str | None = None
    """Name of the branch whose value this is, if it is one branch's."""
    extracted: bool = False
    """The value is an answer that the task has taken from a text already, not a text with an answer in it."""
    patch: Plan | None = None
    """More plan, whose output replaces the value: how a merge asks a model. It may refer to the branches."""


class Tally(Protocol):
    """What a merge has counted of a join so far, branch by branch, so that no end of a branch makes it look at all."""

    def ended(self, branch: Branch) -> None:
        """Take in a branch that has ended, in whatever state. Of the same branch only the first time counts."""
        ...

    def decided(self, outstanding: int) -> bool:
        """Return the result of `Merge.decided` over the branches taken in."""
        ...


class Merge(PluginModel):
    """Makes one answer of many branches. Pure, like a policy."""

    votes: ClassVar[bool] = False
    """Whether it weighs the branches' answers against one another, so that a rule about votes may stop its branches."""
    verifies: ClassVar[bool] = False
    """Whether one right branch is enough, since it takes what the task's verifier finds right."""
    plans_more: ClassVar[bool] = True
    """Whether its verdicts may have a patch. A server then reserves all that a run may generate."""
    collects: ClassVar[bool] = False
    """Whether its value is the list of all its branches' values, and weighs as much as they do together."""

    def reads(self, task: Task) -> Task:
        """Return the task that parses and compares the branches' answers: by default the request's.
        A vote over something else than answers returns one of its own; the rules that stop votes read by it too."""
        return task

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the verdict over the branches, in the join's order. A branch without a result has `result` `None`."""
        raise NotImplementedError

    def decided(self, branches: Sequence[Branch], outstanding: int, task: Task) -> bool:
        """Return whether no outcome of the `outstanding` branches can change the verdict over those done."""
        return False

    def tally(self, task: Task) -> Tally | None:
        """Return an empty tally, which is asked in the place of `decided`; `None` if the merge has to see all branches.
        A class that has its own `decided` and inherits this is asked `decided`."""
        return None


class BranchSpec(Frozen):
    """One more branch, as an allocation wants it; what is `None` the planner decides."""

    temperature: float | None = Field(default=None, ge=0.0)
    strategy: str = ""
    """Words added to the prompt: how to go about it."""
    model: str | None = None
    """Name of the model that is to answer."""


class Allocation(Frozen):
    """How many more branches there shall be, and which."""

    branches: tuple[BranchSpec, ...] = ()
    why: str = ""
    again: bool = False
    """Ask again when these have ended: with what they say there may have to be more."""


class Allocator(Merge):
    """A merge of a few probes whose value is an `Allocation`, as JSON: the reader of a join that expands makes the
    branches of it. Pure, like any merge."""

    max_branches: Count = Field(
        default=32, ge=1, le=MOST_STEPS, description="Maximum number of branches in all, the probes included."
    )
    most_tokens: Annotated[int | None, TokenCount()] = Field(
        default=None,
        ge=0,
        description="Token limit of all branches together; probes count, and a branch is estimated to cost "
        "what a probe does.",
    )
    vote: bool = Field(
        default=False, description="The answers are voted on: no verifier chooses one of them (`Merge.verifies`)."
    )

    def allocate(self, probes: Sequence[Branch], task: Task) -> Allocation:
        """Return the branches that follow the probes, at most `affordable` of them."""
        raise NotImplementedError

    def affordable(self, probes: Sequence[Branch]) -> int:
        """Return the number of further branches that the limits allow."""
        room = max(0, self.max_branches - len(probes))
        if self.most_tokens is None:
            return room
        used = sum(probe.tokens for probe in probes)
        mean = max(1, -(-used // max(1, sum(probe.tokens > 0 for probe in probes))))
        return min(room, max(0, self.most_tokens - used) // mean)

    def merge(self, branches: Sequence[Branch], task: Task) -> Verdict:
        """Return the allocation as a value."""
        allocation = self.allocate(branches, task)
        return Verdict(value=allocation.model_dump(mode="json"), why=allocation.why)


class PluginRegistry(Protocol):
    """The machine's lookup of plugins by name. Each method raises `PluginError` for an unknown one; `task` raises
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
    """The token ids, from a worker that can continue from ids."""
    group: float | None = None
    """Mean confidence (nats) of the last full window, if `Sampling.window` asks for it."""
    lowest: float | None = None
    """The lowest such mean so far."""
    reasoning: str = ""
    """Reasoning that a server sends apart from the text. It comes before the text."""


@runtime_checkable
class Worker(Protocol):
    """The only thing that touches the world. Its constructor is cheap; `start` does the work.

    A class that inherits from `Worker` gets the defaults below. One that only has the methods may leave out the
    attributes that have a default: `offer` reads them.
    """

    name: str
    slots: int
    """Jobs at the same time."""
    serves: tuple[Kind, ...]
    models: tuple[str, ...] = ()
    """Names that `ModelCall.model` may ask for; empty: any name."""
    cache_tokens: int | None = None
    """Tokens that its prefix cache holds, known after `start`."""
    block: int | None = None
    """Tokens in a block of that cache."""
    reports: int | None = None
    """Tokens: the most between two reports (`Progress.tokens`) of a job that asks for them (`Job.report`). `None`: it
    may report none before the end; then a budget of tokens reserves all that a job may generate."""
    hints: bool = False
    """Whether its jobs shall come with `Job.hints`."""
    extra_body: tuple[str, ...] | None = None
    """Fields of `Sampling.extra_body` that it takes; `None`: it does not say, as for a server that is asked."""
    prices: Mapping[str, Price] = MappingProxyType({})
    """What its models cost, by name; under no name that of any other."""
    lost: str = ""
    """Why it went away, once it has: the engine's own error."""
    lease: float | None = None
    """Seconds without a sign of life after which the worker ends a call itself. `None`: a call that the worker has not
    reported on for a day is lost."""
    identity: str = ""
    """Which model really answers, known after `start`: two workers with the same text give results of the same model.
    Empty if the worker cannot say."""

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
        """Yield `True` when ready (again) and `False` when down for a while; end when down for ever. The driver
        reads it from after `start` until `close`."""
        ...

    async def close(self) -> None:
        """Free everything. May be called twice, and after a failed `start`."""
        ...

    async def count_tokens(self, op: ModelCall) -> int | None:
        """Return the number of tokens of a prompt for the model, templates included; `None` if unknown. Called
        before a job is sent whose prompt a budget limits. A worker need not have this method."""
        return None

    async def cache_news(self) -> AsyncIterator[CacheUpdate]:
        """Yield what changes in the prefix cache, some of it at once, if the worker can tell: steps are placed by it.
        The first news may be empty. The driver reads it as it does `health`. A worker need not have this method."""
        return
        yield


Tell = Callable[["Progress | Result | Failure"], None]
"""Takes what a worker says of a job. Called on the event loop's thread."""


class DirectWorker(Worker, Protocol):
    """A worker with a second way to do a job: called back rather than iterated, which saves a task and an async
    generator a job. It pays where jobs are short, as most calls of tools are."""

    def begin(self, job: Job, tell: Tell) -> None:
        """Start one job and return at once; tell what `run` would yield, which may be done before this returns.

        Used in place of `run`, except where a subclass overrides `run` alone.
        """
        ...


def direct(worker: Worker) -> DirectWorker | None:
    """Return a worker that jobs may be begun on; `None` for one that has only `run`, or a `run` of its own above the
    class that has `begin`."""
    for cls in type(worker).__mro__:
        if "begin" in vars(cls):
            return cast("DirectWorker", worker)
        if "run" in vars(cls):
            return None
    return None


class Offer(NamedTuple):
    """What a worker offers at a given moment."""

    slots: int
    serves: tuple[Kind, ...]
    models: tuple[str, ...]
    cache_tokens: int | None
    block: int | None
    identity: str
    reports: int | None
    counts_tokens: bool
    """It has a method `count_tokens` of its own."""
    prices: Mapping[str, Price]


def cache_news(worker: Worker) -> AsyncIterator[CacheUpdate] | None:
    """Return a worker's stream of prefix-cache events, or `None` if it has no such stream."""
    own = getattr(type(worker), "cache_news", Worker.cache_news)
    return None if own is Worker.cache_news else worker.cache_news()


def offer(worker: Worker) -> Offer:
    """Return the worker's current offer. Parts are known only after its start, or change when it comes back."""
    reports: object = getattr(worker, "reports", None)
    counts = getattr(type(worker), "count_tokens", Worker.count_tokens) is not Worker.count_tokens
    return Offer(
        worker.slots,
        worker.serves,
        getattr(worker, "models", ()),
        getattr(worker, "cache_tokens", None),
        getattr(worker, "block", None),
        getattr(worker, "identity", ""),
        reports if type(reports) is int and reports > 0 else None,
        bool(getattr(worker, "counts_tokens", counts)),
        getattr(worker, "prices", {}),
    )
